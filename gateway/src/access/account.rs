//! Users and groups of the system, by name and by number.
//!
//! Config files name them, the kernel knows their numbers, and errors show both. Names come from
//! `/etc/passwd` and `/etc/group`, and from `getent` where a directory service has them.

use std::fmt;
use std::process::{Command, Stdio};

/// 64 characters: the longest name or number of a user or group that a config file may give; a
/// longer text is refused. Linux allows 32 characters, directory services more.
const ACCOUNT_CHARS_MAX: usize = 64;

/// A user or a group as a config file names it: by its name or its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account(String);

/// The system lacks a user or a group that the region file names. Its author's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this host has no {kind} `{account}`: make it, or correct `{kind}` in the region file")]
pub struct AccountError {
    /// `user` or `group`, which is also the key of the region file.
    pub kind: &'static str,
    /// The name or number that the file gives.
    pub account: Account,
}

impl Account {
    /// Makes an account from its name or number. `None` for a text that cannot be a name, and for a
    /// number that no account can have.
    pub fn parse(text: &str) -> Option<Self> {
        let in_names =
            |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '$' | '@');
        let may_be_name = (1..=ACCOUNT_CHARS_MAX).contains(&text.len())
            && text.chars().all(in_names)
            && !text.starts_with('-');
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        let valid = may_be_name && (!is_number || account_number(text).is_some());
        valid.then(|| Self(text.to_owned()))
    }

    /// Returns the number of the account as a user of this host.
    ///
    /// # Errors
    /// This host has no such user.
    pub fn user_id(&self) -> Result<u32, AccountError> {
        self.id(AccountDatabase::Users)
    }

    /// Returns the number of the account as a group of this host.
    ///
    /// # Errors
    /// This host has no such group.
    pub fn group_id(&self) -> Result<u32, AccountError> {
        self.id(AccountDatabase::Groups)
    }

    /// Returns the account's number: the text itself if it is one, else that of the entry of this
    /// name.
    fn id(&self, database: AccountDatabase) -> Result<u32, AccountError> {
        let number = account_number(&self.0).or_else(|| database.find_id(&self.0));
        number.ok_or_else(|| AccountError { kind: database.kind(), account: self.clone() })
    }
}

impl fmt::Display for Account {
    /// Prints the name or number as the file gives it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns the number of the user with whose rights this process acts (its effective user).
pub fn own_user_account() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Names a user of the system for people, such as `alice (1000)`; the number alone where it has no
/// name.
pub fn user_account_label(id: u32) -> String {
    AccountDatabase::Users.label(id)
}

/// Names a group of the system for people, such as `train (1001)`; the number alone where it has no
/// name.
pub fn group_account_label(id: u32) -> String {
    AccountDatabase::Groups.label(id)
}

/// Parses the number of a user or group: digits alone, below 2^32 - 1, which means "none" to the
/// system. `None` for any other text.
fn account_number(text: &str) -> Option<u32> {
    // `parse` takes a sign as well.
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| is_number && *number != u32::MAX)
}

/// A list of accounts of the system, one a line: `NAME:PASSWORD:NUMBER:...`.
#[derive(Debug, Clone, Copy)]
enum AccountDatabase {
    Users,
    Groups,
}

impl AccountDatabase {
    /// Returns the word for one entry, `user` or `group`.
    const fn kind(self) -> &'static str {
        match self {
            Self::Users => "user",
            Self::Groups => "group",
        }
    }

    /// Returns the name of the list: that of its file in `/etc`, and that by which `getent` knows it.
    const fn name(self) -> &'static str {
        match self {
            Self::Users => "passwd",
            Self::Groups => "group",
        }
    }

    /// Finds the number of the account `name` in the file, else through `getent`.
    fn find_id(self, name: &str) -> Option<u32> {
        self.find(name, |entry, _| entry == name).map(|(_, id)| id)
    }

    /// Returns the name of an account with its number, or the number alone.
    fn label(self, id: u32) -> String {
        match self.find(&id.to_string(), |_, entry| entry == id) {
            Some((name, _)) => format!("{name} ({id})"),
            None => id.to_string(),
        }
    }

    /// Finds the account that `is_wanted`, by its name and number: in the file, else by asking
    /// `getent` for `key`.
    fn find(self, key: &str, is_wanted: impl Fn(&str, u32) -> bool) -> Option<(String, u32)> {
        find_account(&self.read_file(), &is_wanted).or_else(|| {
            let mut asked = Command::new("getent");
            asked.args([self.name(), key]).stdin(Stdio::null()).stderr(Stdio::null());
            find_account(&String::from_utf8_lossy(&asked.output().ok()?.stdout), &is_wanted)
        })
    }

    /// Reads `/etc/passwd` or `/etc/group`; an empty text where there is none.
    fn read_file(self) -> String {
        let bytes = std::fs::read(format!("/etc/{}", self.name())).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Finds the first account of a list that `is_wanted`, by its name and number.
fn find_account(text: &str, is_wanted: impl Fn(&str, u32) -> bool) -> Option<(String, u32)> {
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, _, number) = (fields.next()?, fields.next()?, fields.next()?);
        let number = number.parse().ok()?;
        is_wanted(name, number).then(|| (name.to_owned(), number))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_names_or_numbers() {
        for good in ["root", "1000", "svc-landbridge", "a.b@example", "_x", "0"] {
            assert!(Account::parse(good).is_some(), "{good}");
        }
        let long = "a".repeat(ACCOUNT_CHARS_MAX + 1);
        for bad in ["", "-x", "a b", "a:b", "a/b", "4294967295", "99999999999", "é", &long] {
            assert_eq!(Account::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn root_is_found_by_name_and_number() {
        let root = Account::parse("root").expect("a name");
        assert_eq!((root.user_id(), root.group_id()), (Ok(0), Ok(0)));
        assert_eq!(user_account_label(0), "root (0)");
        let nobody = Account::parse("no-such-user-here").expect("a name");
        let error = nobody.group_id().expect_err("no such group");
        assert!(error.to_string().contains("no group `no-such-user-here`"), "{error}");
        assert_eq!(Account::parse("4000000000").expect("a number").user_id(), Ok(4_000_000_000));
    }

    #[test]
    fn lines_that_are_no_accounts_are_skipped() {
        let text =
            "# comment\n\nbroken:x\nalice:x:not a number\nalice:x:1000:1000::/home:/bin/sh\n";
        let alice = find_account(text, |name, _| name == "alice");
        assert_eq!(alice, Some(("alice".to_owned(), 1000)));
    }
}
