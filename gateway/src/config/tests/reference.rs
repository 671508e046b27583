use crate::config::config_value::{FromConfigValue, MemorySize};
use crate::config::key::{KeyDescription, TableKeys};
use crate::config::reference::{FABRIC_EXAMPLE, REGION_EXAMPLE, reference_page};
use crate::config::{FabricFile, RegionFile, fabric, region};
use std::path::Path;
use toml::de::DeTable;
use units::{BitRate, QuantityError, Span};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");

#[test]
fn the_page_in_docs_equals_the_generated_one() {
    let page = std::fs::read_to_string(PAGE).expect("docs/configuration.md");
    assert!(
        page == reference_page(),
        "run: cargo run -p gateway --example configuration > docs/configuration.md"
    );
}

#[test]
fn the_examples_of_the_page_are_valid_files() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    FabricFile::parse(Path::new("fabric.toml"), FABRIC_EXAMPLE).expect("valid");
    std::fs::write(directory.path().join("fabric.toml"), FABRIC_EXAMPLE).expect("written");
    let region = RegionFile::parse(&directory.path().join("east.toml"), REGION_EXAMPLE);
    assert_eq!(region.expect("valid").gateways().count(), 2);
}

#[test]
fn the_examples_of_the_page_have_every_key() {
    for (table, example) in [
        (&fabric::keys::FABRIC_FILE_TABLE, FABRIC_EXAMPLE),
        (&region::keys::REGION_FILE_TABLE, REGION_EXAMPLE),
    ] {
        for key in all_keys(table) {
            let line = format!("{} = ", key.name);
            assert!(example.lines().any(|text| text.starts_with(&line)), "{}", key.name);
        }
    }
}

#[test]
fn the_example_of_each_key_is_a_valid_value() {
    for key in [&fabric::keys::FABRIC_FILE_TABLE, &region::keys::REGION_FILE_TABLE]
        .into_iter()
        .flat_map(all_keys)
    {
        let text = format!("{} = {}", key.name, key.example);
        let table = DeTable::parse(&text).expect("TOML");
        let value = table.get_ref().get(key.name).expect("the key");
        assert!((key.accepts)(value.get_ref()), "{text}");
    }
}

#[test]
fn units_in_accepted_forms_are_those_that_parse() {
    fn wanted<T: std::str::FromStr<Err = QuantityError>>() -> &'static str {
        "".parse::<T>().err().expect("an empty text is no quantity").wanted
    }
    assert_eq!(BitRate::VALUE_TYPE.accepted, wanted::<BitRate>());
    assert_eq!(Span::VALUE_TYPE.accepted, wanted::<Span>());
    let units = wanted::<units::ByteCount>().split_once('(').expect("lists its units").1;
    assert!(MemorySize::VALUE_TYPE.accepted.ends_with(units), "{units}");
}

fn all_keys(table: &TableKeys) -> Vec<KeyDescription> {
    let inner = table.tables.iter().flat_map(|table| all_keys(table));
    table.keys.iter().copied().chain(inner).collect()
}
