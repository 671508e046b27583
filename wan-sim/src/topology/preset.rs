//! Links with a name, each with its provenance.

use super::keys::RawLink;
use crate::LinkSpec;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// A link that files can name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preset {
    /// The name of the preset.
    pub name: &'static str,
    /// The source of its numbers.
    pub provenance: &'static str,
    /// The link in either direction; without a rate, which the user of the preset adds.
    pub link: LinkSpec,
}

/// Returns all presets, by name.
pub fn presets() -> impl Iterator<Item = Preset> {
    PRESETS.iter().map(|(name, entry)| Preset {
        name,
        provenance: &entry.provenance,
        link: entry.link.build().expect("a test builds every preset"),
    })
}

/// Returns the keys of the preset with this name.
pub(super) fn find_preset(name: &str) -> Option<&'static RawLink> {
    PRESETS.get(name).map(|entry| &entry.link)
}

/// Returns the names of all presets, separated by commas, for errors.
pub(super) fn preset_names() -> String {
    PRESETS.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// The keys of a preset.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PresetEntry {
    provenance: String,
    link: RawLink,
}

/// The presets of links in presets.toml by name, read at their first use.
static PRESETS: LazyLock<BTreeMap<String, PresetEntry>> = LazyLock::new(|| {
    toml::from_str(include_str!("presets.toml")).expect("a test reads every preset")
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_a_link_with_provenance() {
        let all: Vec<_> = presets().collect();
        assert!(all.iter().all(|preset| !preset.provenance.is_empty()));
        for km in [30, 100, 410, 500, 640, 1000, 1500, 2000] {
            let name = format!("km-{km}");
            let preset = all.iter().find(|preset| preset.name == name).unwrap();
            assert_eq!(preset.link.delay().ns(), km * 5000, "{name}");
        }
    }
}
