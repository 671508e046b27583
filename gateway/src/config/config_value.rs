//! The forms that a value of a config file can have.

use super::former_value::{FormerValue, LINK_SHARE};
use crate::access::Account;
use crate::local::socket::GatewaySocketMode;
use crate::wan::connect::lane_addresses::LaneAddresses;
use crate::wan::link::controller_policy::ControllerPolicy;
use crate::wan::link::rate_schedule::RateSchedule;
use hier_collectives::topology::QuorumSpec;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;
use toml::Spanned;
use toml::de::DeValue;
use units::{BitRate, ByteCount, Fraction, QuantityError, Span};

/// 16 lanes: the most between two gateways, as each costs the time of a thread; a fabric file that asks
/// for more is refused.
const LANES_MAX: u16 = 16;

/// A value that its key does not accept. The fault of the file's author.
pub(super) struct BadValue {
    /// The fault.
    pub(super) problem: String,
    /// The accepted form.
    pub(super) accepted: String,
    /// The value that took its place, if an earlier version took this one.
    pub(super) former: Option<FormerValue>,
}

impl BadValue {
    /// Makes the fault of a value that no earlier version took either.
    fn new(problem: String, accepted: &str) -> Self {
        Self { problem, accepted: accepted.to_owned(), former: None }
    }
}

/// A form of values, as faults and the reference page describe it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ValueType {
    /// Its name on the page, such as `rate`.
    pub(super) name: &'static str,
    /// Its type in TOML.
    pub(super) toml: &'static str,
    /// The accepted spellings, with an example.
    pub(super) accepted: &'static str,
}

/// A type that a value can be read as.
pub(super) trait FromConfigValue: Sized {
    /// The name, the TOML type and the accepted form of values of this type, for messages and docs.
    const VALUE_TYPE: ValueType;

    /// Reads a TOML value; `None` when it does not have the form [`Self::VALUE_TYPE`].
    fn parse_config_value(value: &DeValue<'_>) -> Option<Self>;

    /// Says what is wrong with a value of the right TOML type, as a phrase after the value; `None`
    /// where the accepted form tells it.
    fn problem_of_config_value(_value: &DeValue<'_>) -> Option<String> {
        None
    }

    /// Returns the change that replaced a value of an earlier version; `None` for any other value.
    fn former_config_value(_value: &DeValue<'_>) -> Option<FormerValue> {
        None
    }

    /// Reads a TOML value, or says what would be accepted.
    fn from_config_value(value: &DeValue<'_>) -> Result<Self, BadValue> {
        Self::parse_config_value(value).ok_or_else(|| {
            let ValueType { toml, accepted, .. } = Self::VALUE_TYPE;
            let former = Self::former_config_value(value);
            let problem = match toml.contains(value.type_str()) {
                false => Some(format!(
                    "is {}, not {}",
                    toml_type_of_config_value(value),
                    config_value_type_with_article(toml)
                )),
                true => match &former {
                    Some(former) => Some(former.problem()),
                    None => Self::problem_of_config_value(value),
                },
            };
            let problem = problem.unwrap_or_else(|| "is not accepted here".to_owned());
            BadValue { problem, accepted: accepted.to_owned(), former }
        })
    }
}

/// Makes the description of the values of a type: its name, the TOML type, and the words for what
/// is accepted.
pub(super) const fn config_value_type(
    name: &'static str,
    toml: &'static str,
    accepted: &'static str,
) -> ValueType {
    ValueType { name, toml, accepted }
}

/// The name of a fabric, region, gateway or job; a label of a DNS name in certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name(pub(super) String);

impl FromConfigValue for Name {
    /// Name, TOML type and accepted form of the name of a fabric, region, gateway or job, as
    /// faults and docs show them.
    const VALUE_TYPE: ValueType = config_value_type(
        "name",
        "string",
        "a name of lower-case letters, digits and inner hyphens, at most 63 long, such as \
         \"east-0\"",
    );
    /// Reads the name of a fabric, region, gateway or job: a string that is a valid name.
    fn parse_config_value(value: &DeValue<'_>) -> Option<Self> {
        value
            .as_str()
            .filter(|text| is_valid_config_name_value(text))
            .map(|text| Self(text.to_owned()))
    }
}

/// Returns whether a text can name a fabric, region, gateway or job: 1 to 63 lower-case letters,
/// digits and inner hyphens.
pub fn is_valid_config_name_value(text: &str) -> bool {
    let inner = text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    inner && (1..=63).contains(&text.len()) && !text.starts_with('-') && !text.ends_with('-')
}

/// A number of ranks, from 1 to 65536: far above any fabric, and sums fit 32 bits.
#[derive(Debug, Clone, Copy)]
pub(super) struct RankCount(pub(super) u32);

impl FromConfigValue for RankCount {
    /// Name, TOML type and accepted form of a number of ranks, as faults and docs show them.
    const VALUE_TYPE: ValueType =
        config_value_type("rank count", "integer", "a whole number from 1 to 65536");
    /// Reads a number of ranks: an integer from 1 to 65536.
    fn parse_config_value(value: &DeValue<'_>) -> Option<Self> {
        parse_u32_config_value(value).filter(|count| (1..=65_536).contains(count)).map(Self)
    }
}

/// A number of lanes, from 1 to [`LANES_MAX`].
#[derive(Debug, Clone, Copy)]
pub(super) struct LaneCount(pub(super) u16);

impl FromConfigValue for LaneCount {
    /// Name, TOML type and accepted form of a number of lanes, as faults and docs show them.
    const VALUE_TYPE: ValueType =
        config_value_type("lane count", "integer", "a whole number from 1 to 16");
    /// Reads a number of lanes: an integer from 1 to 16.
    fn parse_config_value(value: &DeValue<'_>) -> Option<Self> {
        let lanes = u16::try_from(parse_u32_config_value(value)?).ok()?;
        (1..=LANES_MAX).contains(&lanes).then_some(Self(lanes))
    }
}

impl FromConfigValue for QuorumSpec {
    /// Name, TOML type and accepted form of a quorum, as faults and docs show them.
    const VALUE_TYPE: ValueType = config_value_type(
        "quorum",
        "string, integer or array",
        "\"all\", \"majority\", a number of regions such as 3, or an array of regions such as \
         [\"east\"]",
    );
    /// Reads a quorum: a word, a number of regions, or their names.
    fn parse_config_value(value: &DeValue<'_>) -> Option<Self> {
        match value {
            DeValue::String(word) if &**word == "all" => Some(Self::All),
            DeValue::String(word) if &**word == "majority" => Some(Self::Majority),
            DeValue::Array(names) => {
                let name =
                    |value: &Spanned<DeValue<'_>>| value.get_ref().as_str().map(str::to_owned);
                names.iter().map(name).collect::<Option<_>>().map(Self::Named)
            }
            value => u16::try_from(parse_u32_config_value(value)?).ok().map(Self::Count),
        }
    }
}

/// A job's share of a link, relative to the weights of other jobs.
impl FromConfigValue for NonZeroU32 {
    /// Name, TOML type and accepted form of the weight of a job, as faults and docs show them.
    const VALUE_TYPE: ValueType =
        config_value_type("weight", "integer", "a whole number from 1 to 1000");
    /// Reads the weight of a job: an integer from 1 to 1000.
    fn parse_config_value(value: &DeValue<'_>) -> Option<Self> {
        let weight = parse_u32_config_value(value).filter(|weight| (1..=1000).contains(weight))?;
        Self::new(weight)
    }
}

impl FromConfigValue for bool {
    /// Name, TOML type and accepted form of a boolean, as faults and docs show them.
    const VALUE_TYPE: ValueType = config_value_type("boolean", "boolean", "true or false");
    /// Reads `true` or `false`.
    fn parse_config_value(value: &DeValue<'_>) -> Option<Self> {
        value.as_bool()
    }
}

impl FromConfigValue for u16 {
    /// Name, TOML type and accepted form of a number of bytes, as faults and docs show them.
    const VALUE_TYPE: ValueType =
        config_value_type("byte count", "integer", "a whole number of bytes, such as 1500");
    /// Reads a number of bytes, such as an MTU: an integer from 0 to 65535.
    fn parse_config_value(value: &DeValue<'_>) -> Option<Self> {
        parse_u32_config_value(value).and_then(|number| Self::try_from(number).ok())
    }
}

/// Relative compute speeds, one number for each rank.
#[derive(Debug, Clone)]
pub(super) struct Speeds(pub(super) Vec<f64>);

impl FromConfigValue for Speeds {
    /// Name, TOML type and accepted form of ranks' speeds, as faults and docs show them.
    const VALUE_TYPE: ValueType =
        config_value_type("speeds", "array", "an array of positive numbers, such as [1.0, 0.5]");
    /// Reads the compute speeds of ranks: an array of positive numbers.
    fn parse_config_value(value: &DeValue<'_>) -> Option<Self> {
        let numbers =
            value.as_array()?.iter().map(|number| parse_positive_config_value(number.get_ref()));
        numbers.collect::<Option<Vec<f64>>>().map(Self)
    }
}

/// Addresses that lanes bind: an address of this host, or the unspecified one. Port 0 stands for any.
#[derive(Debug, Clone)]
pub(super) struct LaneBindAddress(pub(super) LaneAddresses);

impl FromConfigValue for LaneBindAddress {
    /// Name, TOML type and accepted form of addresses to bind, as faults and docs show them.
    const VALUE_TYPE: ValueType = config_value_type(
        "lane address",
        "string or array",
        "an IP address and UDP port to bind, such as \"0.0.0.0:7400\", or port 0 without `wan`; or an \
         array of such addresses, one for each that the fabric has",
    );
    /// Reads the addresses that lanes bind, which may be the unspecified one, for all of the host.
    fn parse_config_value(value: &DeValue<'_>) -> Option<Self> {
        parse_lane_address_config_value(value).map(Self)
    }
    /// Names the first of the addresses that is at fault, and says why.
    fn problem_of_config_value(value: &DeValue<'_>) -> Option<String> {
        problem_of_address_config_values(value, |_| None)
    }
}

/// A TCP address of this host; the port is not 0.
#[derive(Debug, Clone, Copy)]
pub(super) struct BindAddress(pub(super) SocketAddr);

impl FromConfigValue for BindAddress {
    /// Name, TOML type and accepted form of a TCP address to bind, as faults and docs show them.
    const VALUE_TYPE: ValueType = config_value_type(
        "listen address",
        "string",
        "an IP address and port to bind, such as \"127.0.0.1:9400\" or \"[::1]:9400\"",
    );
    /// Reads a TCP address to listen at: a string with an IP address and a port above 0.
    fn parse_config_value(value: &DeValue<'_>) -> Option<Self> {
        let address: SocketAddr = value.as_str()?.parse().ok()?;
        (address.port() != 0).then_some(Self(address))
    }
}

impl FromConfigValue for PathBuf {
    /// Name, TOML type and accepted form of a path, as faults and docs show them.
    const VALUE_TYPE: ValueType = config_value_type(
        "path",
        "string",
        "a path, absolute or relative to this file, such as \"keys/ca.pem\"",
    );
    /// Reads the path of a file or socket: a string that is not empty and has no zero byte.
    fn parse_config_value(value: &DeValue<'_>) -> Option<Self> {
        let text = value.as_str()?;
        (!text.is_empty() && !text.contains('\0')).then(|| Self::from(text))
    }
}

/// A user or group of the gateway's host.
impl FromConfigValue for Account {
    /// Name, TOML type and accepted form of a user or group, as faults and docs show them.
    const VALUE_TYPE: ValueType = config_value_type(
        "account",
        "string",
        "the name or number of a Unix user or group, such as \"landbridge\" or \"1000\"",
    );
    /// Reads a user or group: a string that can be its name or number.
    fn parse_config_value(value: &DeValue<'_>) -> Option<Self> {
        value.as_str().and_then(Self::parse)
    }
}

/// A mode of a Unix socket, by the users who may connect.
impl FromConfigValue for GatewaySocketMode {
    /// Name, TOML type and accepted form of a socket's mode, as faults and docs show them.
    const VALUE_TYPE: ValueType = config_value_type(
        "socket mode",
        "string",
        "\"0600\" for the gateway's user, \"0660\" for its `group` too, \"0666\" for all users",
    );
    /// Reads the mode of a gateway's socket: a string with one of three octal numbers.
    fn parse_config_value(value: &DeValue<'_>) -> Option<Self> {
        match value.as_str()? {
            "0600" => Some(Self::User),
            "0660" => Some(Self::Group),
            "0666" => Some(Self::All),
            _ => None,
        }
    }
}

/// A memory budget of at least 1 MiB.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemorySize(pub(super) ByteCount);

impl FromConfigValue for MemorySize {
    /// Name, TOML type and accepted form of a memory budget, as faults and docs show them.
    const VALUE_TYPE: ValueType = config_value_type(
        "size",
        "string",
        "a size such as \"1 GiB\", at least 1 MiB (B, kB, MB, GB, TB in 1000s; KiB, MiB, GiB, \
         TiB in 1024s)",
    );
    /// Reads a memory budget: a string with a size of at least 1 MiB.
    fn parse_config_value(value: &DeValue<'_>) -> Option<Self> {
        let size: ByteCount = value.as_str()?.parse().ok()?;
        (size.get() >= 1 << 20).then_some(Self(size))
    }
}

impl FromConfigValue for ControllerPolicy {
    /// Name, TOML type and accepted form of a congestion controller, as faults and docs show them.
    const VALUE_TYPE: ValueType = config_value_type(
        "controller",
        "string",
        "\"dedicated\", \"shared\", \"cubic\" or \"newreno\"",
    );
    /// Reads the name of a congestion controller, such as `dedicated`.
    fn parse_config_value(value: &DeValue<'_>) -> Option<Self> {
        let text = value.as_str()?;
        Self::ALL.into_iter().find(|kind| kind.name() == text)
    }

    /// Returns the earlier name of `dedicated`.
    fn former_config_value(value: &DeValue<'_>) -> Option<FormerValue> {
        (value.as_str()? == "link-share").then_some(LINK_SHARE)
    }
}

impl FromConfigValue for RateSchedule {
    /// Name, TOML type and accepted form of a rate schedule, as faults and docs show them.
    const VALUE_TYPE: ValueType = config_value_type(
        "schedule",
        "array of tables",
        "at least one entry such as { at = \"08:00\", rate = \"300 Mbit/s\" }, with times of \
         day in UTC in ascending order",
    );
    /// Reads entries of a time of day and a rate, in ascending order.
    fn parse_config_value(value: &DeValue<'_>) -> Option<Self> {
        let entry = |entry: &Spanned<DeValue<'_>>| {
            let table = entry.get_ref().as_table()?;
            let field = |name| table.get(name)?.get_ref().as_str();
            let (at, rate) =
                (parse_day_time_config_value(field("at")?)?, field("rate")?.parse().ok()?);
            (table.len() == 2).then_some((at, rate))
        };
        let entries = value.as_array()?.iter().map(entry);
        entries.collect::<Option<Vec<_>>>().and_then(Self::new)
    }
    /// Names the first entry that is at fault.
    fn problem_of_config_value(value: &DeValue<'_>) -> Option<String> {
        let mut before = None;
        value.as_array()?.iter().enumerate().find_map(|(index, entry)| {
            let Some(table) = entry.get_ref().as_table() else {
                return Some(format!("has entry {}, which is no table", index + 1));
            };
            let text = |name| table.get(name).and_then(|value| value.get_ref().as_str());
            let number = index + 1;
            let known = |key: &str| ["at", "rate"].contains(&key);
            if let Some(other) = table.keys().map(Spanned::get_ref).find(|key| !known(key)) {
                return Some(format!("has entry {number} with key `{other}`, which is unknown"));
            }
            match (text("at"), text("rate")) {
                (None, _) => Some(format!("has entry {number} without a text `at`")),
                (_, None) => Some(format!("has entry {number} without a text `rate`")),
                (Some(at), _) if parse_day_time_config_value(at).is_none() => {
                    Some(format!("has entry {number} at `{at}`, which is no time of day"))
                }
                (_, Some(rate)) if rate.parse::<BitRate>().is_err() => {
                    Some(format!("has entry {number} with `{rate}`, which is no rate"))
                }
                (Some(at), _) => {
                    let last = before.replace(parse_day_time_config_value(at)?);
                    (last >= before)
                        .then(|| format!("has entry {number} at `{at}`, not after the one before"))
                }
            }
        })
    }
}

/// Parses a time of day such as `08:00` or `08:00:30` to seconds since midnight.
fn parse_day_time_config_value(text: &str) -> Option<u32> {
    let fields: Vec<&str> = text.split(':').collect();
    let number = |text: &str, below: u32| {
        let digits = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|number: &u32| digits && *number < below)
    };
    let seconds = match fields[..] {
        [_, _] => 0,
        [_, _, seconds] => number(seconds, 60)?,
        _ => return None,
    };
    Some(number(fields[0], 24)? * 3600 + number(fields[1], 60)? * 60 + seconds)
}

macro_rules! quantity {
    ($kind:ty, $name:literal, $accepted:literal) => {
        impl FromConfigValue for $kind {
            /// Name, TOML type and accepted form of this quantity, as faults and docs show them.
            const VALUE_TYPE: ValueType = config_value_type($name, "string", $accepted);
            /// Reads a string of a number and a unit.
            fn parse_config_value(value: &DeValue<'_>) -> Option<Self> {
                value.as_str()?.parse().ok()
            }
            /// Reads a string of a number and a unit, or says which units are accepted.
            fn from_config_value(value: &DeValue<'_>) -> Result<Self, BadValue> {
                parse_quantity_config_value(value, Self::VALUE_TYPE.accepted)
            }
        }
    };
}

quantity!(BitRate, "rate", "a rate such as \"500 Mbit/s\" (bit/s, kbit/s, Mbit/s, Gbit/s, Tbit/s)");
quantity!(Span, "time", "a time such as \"80 ms\" (ns, us, ms, s, min, h)");

/// The random loss of a link, below 50 %.
#[derive(Debug, Clone, Copy)]
pub(super) struct RandomLoss(pub(super) Fraction);

impl FromConfigValue for RandomLoss {
    /// Name, TOML type and accepted form of a random packet loss, as faults and docs show them.
    const VALUE_TYPE: ValueType = config_value_type(
        "percentage",
        "string",
        "a percentage such as \"0.1 %\", at least 0 % and below 50 %",
    );
    /// Reads the random loss of a link: a string with a percentage below 50 %.
    fn parse_config_value(value: &DeValue<'_>) -> Option<Self> {
        let loss: Fraction = value.as_str()?.parse().ok()?;
        (loss.as_f64() < LOSS_MAX_EXCLUSIVE).then_some(Self(loss))
    }
    /// Reads a percentage, or says what is wrong with it.
    fn from_config_value(value: &DeValue<'_>) -> Result<Self, BadValue> {
        let accepted = Self::VALUE_TYPE.accepted;
        let loss: Fraction = parse_quantity_config_value(value, accepted)?;
        Self::parse_config_value(value).ok_or_else(|| {
            let problem =
                format!("is {loss}, and a link that loses half of all packets is of no use");
            BadValue::new(problem, accepted)
        })
    }
}

/// 0.5, half of all packets: a fabric file that gives this expected random loss for a link, or
/// more, is refused. The check of a fabric asks for the same.
const LOSS_MAX_EXCLUSIVE: f64 = 0.5;

/// Parses a string of a number and a unit, or says which units are accepted.
fn parse_quantity_config_value<T: FromStr<Err = QuantityError>>(
    value: &DeValue<'_>,
    accepted: &'static str,
) -> Result<T, BadValue> {
    let text = value.as_str().ok_or_else(|| {
        let found = toml_type_of_config_value(value);
        BadValue::new(format!("is {found}, not a string with a unit"), accepted)
    })?;
    text.parse().map_err(|_: QuantityError| {
        BadValue::new(problem_of_quantity_config_value(text, accepted), accepted)
    })
}

/// Says what is wrong with the text of a number and its unit. The unit should be one of the words
/// of `accepted`.
fn problem_of_quantity_config_value(text: &str, accepted: &str) -> String {
    let is_of_number = |c: char| c.is_ascii_digit() || matches!(c, '.' | '-' | '+');
    let unit = text.trim_start_matches(is_of_number).trim();
    let number = text.trim().strip_suffix(unit).unwrap_or(text).trim();
    let is_between_words = |c: char| matches!(c, ' ' | ',' | '(' | ')' | '"');
    if number.parse::<f64>().is_err() {
        "has no number before its unit".to_owned()
    } else if unit.is_empty() {
        "has no unit".to_owned()
    } else if !accepted.split(is_between_words).any(|word| word == unit) {
        format!("has the unit `{unit}`, which is none of those")
    } else if number.starts_with(['-', '+']) {
        "has a sign".to_owned()
    } else {
        "is out of range, or finer than this unit's smallest part".to_owned()
    }
}

/// Returns the TOML type of a value with its article, such as `an integer`.
pub(super) fn toml_type_of_config_value(value: &DeValue<'_>) -> String {
    config_value_type_with_article(value.type_str())
}

/// Returns the name of a TOML type with its article, such as `an integer`.
fn config_value_type_with_article(name: &str) -> String {
    let article = if name.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
    format!("{article} {name}")
}

/// Says what is wrong with the first address at fault of a string or an array. `kind_at_fault` names
/// kinds of addresses that are not accepted.
pub(super) fn problem_of_address_config_values(
    value: &DeValue<'_>,
    kind_at_fault: impl Fn(SocketAddr) -> Option<&'static str>,
) -> Option<String> {
    let one = |value: &DeValue<'_>| {
        let text = value.as_str()?;
        match text.parse::<SocketAddr>() {
            Ok(address) if address.port() == 0 => {
                Some(format!("has port 0, and ports are from 1 to {}", u16::MAX))
            }
            Ok(address) => kind_at_fault(address).map(str::to_owned),
            Err(_) if text.contains('%') => {
                Some("has a scope (`%`), which counts on one host alone".to_owned())
            }
            Err(_) if text.parse::<IpAddr>().is_ok() => Some("has no port".to_owned()),
            Err(_) => None,
        }
    };
    match value.as_array() {
        None => one(value),
        Some(array) => array.iter().find_map(|entry| one(entry.get_ref())),
    }
}

/// Parses one address, or an array of addresses that lanes use in turn. The region file's reader judges
/// port 0.
fn parse_lane_address_config_value(value: &DeValue<'_>) -> Option<LaneAddresses> {
    let address = |value: &DeValue<'_>| value.as_str()?.parse::<SocketAddr>().ok();
    match value.as_array() {
        None => address(value).map(LaneAddresses::from),
        Some(array) => {
            let addresses = array.iter().map(|entry| address(entry.get_ref()));
            LaneAddresses::from_addresses(&addresses.collect::<Option<Vec<_>>>()?)
        }
    }
}

/// Parses a TOML integer of 32 bits without sign.
pub(super) fn parse_u32_config_value(value: &DeValue<'_>) -> Option<u32> {
    let integer = value.as_integer()?;
    u32::from_str_radix(integer.as_str(), integer.radix()).ok()
}

/// Parses a finite TOML number above 0.
fn parse_positive_config_value(value: &DeValue<'_>) -> Option<f64> {
    let text = match value {
        DeValue::Float(float) => float.as_str(),
        DeValue::Integer(integer) if integer.radix() == 10 => integer.as_str(),
        _ => return None,
    };
    let number: f64 = text.parse().ok()?;
    (number.is_finite() && number > 0.0).then_some(number)
}
