//! Files of a package in memory, in path order whatever the order in which they were added.

use crate::child_command::{CommandFailure, CommandLine};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// 0o755: the Unix mode of folders and programs in packages.
pub const EXECUTABLE_MODE: u32 = 0o755;
/// 0o644: the Unix mode of files in packages that are no programs.
pub const READABLE_MODE: u32 = 0o644;

/// Files and folders of a package by path, without a leading slash.
#[derive(Debug, Clone, Default)]
pub struct FileTree {
    entries: BTreeMap<String, Entry>,
}

/// An entry's bytes, or the lack of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A folder.
    Folder,
    /// A file with these bytes.
    File(Vec<u8>),
    /// A symbolic link to this path, beside it.
    Link(String),
}

/// A file, a folder or a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Permission bits.
    pub mode: u32,
    /// Number of the owner, and of the owner's group.
    pub owner: u32,
    /// Its content.
    pub content: Content,
}

impl FileTree {
    /// Adds a file that the user root owns, and the folders above it.
    pub fn add_file(&mut self, path: &str, mode: u32, content: impl Into<Vec<u8>>) {
        self.add_folders_above(path);
        let content = Content::File(content.into());
        self.entries.insert(path.to_owned(), Entry { mode, owner: 0, content });
    }

    /// Adds a symbolic link to the file `target` of its own folder.
    pub fn add_link(&mut self, path: &str, target: &str) {
        self.add_folders_above(path);
        let content = Content::Link(target.to_owned());
        self.entries.insert(path.to_owned(), Entry { mode: 0o777, owner: 0, content });
    }

    /// Adds all of another tree below the folder `path`.
    pub fn add_tree(&mut self, path: &str, other: &Self) {
        for (inside, entry) in other.entries() {
            let place = format!("{path}{inside}");
            self.add_folders_above(&place);
            self.entries.insert(place, entry.clone());
        }
    }

    /// Adds a folder of the user with this number, and the folders above it.
    pub fn add_folder(&mut self, path: &str, mode: u32, owner: u32) {
        self.add_folders_above(path);
        self.entries.insert(path.to_owned(), Entry { mode, owner, content: Content::Folder });
    }

    /// Adds a file of the disk; only whether it is executable is kept of its mode.
    pub fn add_from_disk(&mut self, from: &Path, path: &str) -> Result<(), CommandFailure> {
        let read = std::fs::read(from).and_then(|bytes| Ok((bytes, std::fs::metadata(from)?)));
        let (bytes, metadata) = read.map_err(|error| file_tree_failure(from, &error))?;
        let is_executable = metadata.permissions().mode() & 0o100 != 0;
        self.add_file(path, if is_executable { EXECUTABLE_MODE } else { READABLE_MODE }, bytes);
        Ok(())
    }

    /// Adds the files below a folder of the workspace that git tracks: never keys that lie there.
    /// It is a failure if git tracks none.
    pub fn add_tracked(
        &mut self,
        root: &Path,
        folder: &str,
        path: &str,
    ) -> Result<(), CommandFailure> {
        let line = CommandLine::in_path(&["git", "ls-files", "-z", "--", folder]);
        let (status, listed) = line.capture(root)?;
        if !status.success() || listed.is_empty() {
            return Err(line.failure(&format!("git tracks no file below {folder}")));
        }
        for file in listed.split_terminator('\u{0}') {
            let inside = file.strip_prefix(folder).unwrap_or(file);
            self.add_from_disk(&root.join(file), &format!("{path}{inside}"))?;
        }
        Ok(())
    }

    /// Returns all entries in path order, each folder before its files.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.entries.iter().map(|(path, entry)| (path.as_str(), entry))
    }

    /// Returns all files with their content, in path order.
    pub fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.entries().filter_map(|(path, entry)| match &entry.content {
            Content::File(bytes) => Some((path, bytes.as_slice())),
            Content::Folder | Content::Link(_) => None,
        })
    }

    /// Adds the folders above `path` that are missing.
    fn add_folders_above(&mut self, path: &str) {
        for (at, _) in path.match_indices('/') {
            let folder = Entry { mode: EXECUTABLE_MODE, owner: 0, content: Content::Folder };
            self.entries.entry(path[..at].to_owned()).or_insert(folder);
        }
    }
}

/// Returns the failure of a file that cannot be read or written.
pub fn file_tree_failure(path: &Path, error: &std::io::Error) -> CommandFailure {
    CommandFailure {
        why: format!("{}: {error}", path.display()),
        repeat: "cargo xtask package".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_stand_before_their_files() {
        let mut tree = FileTree::default();
        tree.add_file("usr/share-more/a", READABLE_MODE, "a");
        tree.add_file("usr/share/man/page", READABLE_MODE, "page");
        tree.add_folder("tmp", 0o1777, 7);
        let paths: Vec<&str> = tree.entries().map(|(path, _)| path).collect();
        let wanted = [
            "tmp",
            "usr",
            "usr/share",
            "usr/share-more",
            "usr/share-more/a",
            "usr/share/man",
            "usr/share/man/page",
        ];
        assert_eq!(paths, wanted);
        assert_eq!(tree.entries["tmp"], Entry { mode: 0o1777, owner: 7, content: Content::Folder });
        assert_eq!(tree.files().count(), 2);
    }
}
