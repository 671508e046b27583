//! The list of a program's parts (SBOM) in SPDX 2.3, from what cargo knows.

use super::file_tree::file_tree_failure;
use super::package_checksum::sha256_package_checksum;
use super::source_time::SourceTime;
use crate::child_command::{CommandFailure, CommandLine};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Returns what cargo knows of the workspace and all of its dependencies on a target.
pub fn sbom_cargo_metadata(root: &Path, target: &str) -> Result<Value, CommandFailure> {
    let words = ["metadata", "--format-version", "1", "--locked", "--filter-platform", target];
    let line = CommandLine::cargo(&words);
    let (status, text) = line.capture(root)?;
    if !status.success() {
        return Err(line.failure(&status));
    }
    serde_json::from_str(&text).map_err(|error| line.failure(&error))
}

/// Returns the SPDX document of the program `landbridge`: each crate that is compiled into it or
/// runs at its build, with version, licence and origin.
pub fn sbom_document(
    root: &Path,
    metadata: &Value,
    time: &SourceTime,
) -> Result<String, CommandFailure> {
    let lock = root.join("Cargo.lock");
    let lock = std::fs::read(&lock).map_err(|error| file_tree_failure(&lock, &error))?;
    let document =
        describe_sbom_document(metadata, "landbridge", time, &sha256_package_checksum(&lock)?);
    Ok(format!("{document:#}\n"))
}

/// Returns the SPDX document of package `name`, for a lock file with this digest.
fn describe_sbom_document(metadata: &Value, name: &str, time: &SourceTime, lock: &str) -> Value {
    let packages: BTreeMap<&str, &Value> = sbom_array(&metadata["packages"])
        .map(|package| (sbom_text(&package["id"]), package))
        .collect();
    let own = packages.iter().find(|(_, package)| package["name"] == name);
    let own = own.map_or("", |(id, _)| *id);
    let needed = needed_sbom_packages(metadata, own);
    let mut relationships = vec![json!({
        "spdxElementId": "SPDXRef-DOCUMENT",
        "relationshipType": "DESCRIBES",
        "relatedSpdxElement": packages.get(own).map_or_else(String::new, |own| sbom_spdx_id(own)),
    })];
    for (id, dependencies) in &needed {
        relationships.extend(dependencies.iter().map(|dependency| {
            json!({
                "spdxElementId": sbom_spdx_id(packages[id]),
                "relationshipType": "DEPENDS_ON",
                "relatedSpdxElement": sbom_spdx_id(packages[dependency]),
            })
        }));
    }
    let listed: Vec<Value> = needed.keys().map(|id| describe_sbom_package(packages[id])).collect();
    let version = packages.get(own).map_or("", |own| sbom_text(&own["version"]));
    json!({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": format!("{name}-{version}"),
        "documentNamespace": format!("https://spdx.org/spdxdocs/{name}-{version}-{lock}"),
        "creationInfo": {"created": time.text, "creators": ["Tool: cargo-xtask-package"]},
        "packages": listed,
        "relationships": relationships,
    })
}

/// Returns the identities of a package and of all that it needs, each with those that it needs
/// itself. Dependencies of tests are left out.
fn needed_sbom_packages<'a>(
    metadata: &'a Value,
    own: &'a str,
) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    let nodes: BTreeMap<&str, &Value> = sbom_array(&metadata["resolve"]["nodes"])
        .map(|node| (sbom_text(&node["id"]), node))
        .collect();
    let is_test = |kind: &Value| kind["kind"] == "dev";
    let mut needed: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut waiting = vec![own];
    while let Some(id) = waiting.pop() {
        let Some(node) = nodes.get(id).filter(|_| !needed.contains_key(id)) else { continue };
        let dependencies = sbom_array(&node["deps"])
            .filter(|dependency| !sbom_array(&dependency["dep_kinds"]).all(is_test));
        let dependencies: BTreeSet<&str> =
            dependencies.map(|dependency| sbom_text(&dependency["pkg"])).collect();
        waiting.extend(&dependencies);
        needed.insert(id, dependencies);
    }
    needed
}

/// Returns the entry of one package.
fn describe_sbom_package(package: &Value) -> Value {
    let (name, version) = (sbom_text(&package["name"]), sbom_text(&package["version"]));
    let is_published = sbom_text(&package["source"]).starts_with("registry+");
    let origin = if is_published {
        format!("https://crates.io/api/v1/crates/{name}/{version}/download")
    } else {
        "NOASSERTION".to_owned()
    };
    // Old crates write a slash between licences.
    let license = package["license"].as_str().map(|license| license.replace('/', " OR "));
    json!({
        "SPDXID": sbom_spdx_id(package),
        "name": name,
        "versionInfo": version,
        "downloadLocation": origin,
        "filesAnalyzed": false,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": license.as_deref().unwrap_or("NOASSERTION"),
        "copyrightText": "NOASSERTION",
        "externalRefs": [{
            "referenceCategory": "PACKAGE-MANAGER",
            "referenceType": "purl",
            "referenceLocator": format!("pkg:cargo/{name}@{version}"),
        }],
    })
}

/// Returns the identity of a package in the document, which has letters, digits, dots and hyphens.
fn sbom_spdx_id(package: &Value) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    let name = format!("{}-{}", sbom_text(&package["name"]), sbom_text(&package["version"]));
    format!("SPDXRef-{}", name.chars().map(plain).collect::<String>())
}

/// Returns a text, or nothing where the value is no text.
fn sbom_text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns the elements of a list, or none where the value is no list.
fn sbom_array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the metadata of `app`, which needs `lib` and, for its tests, `proof`.
    fn metadata() -> Value {
        let package = |name: &str, license: &str| {
            json!({"id": name, "name": name, "version": "1.0.0+x", "license": license,
                   "source": "registry+https://example.org"})
        };
        let dependency =
            |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        json!({
            "packages": [
                package("proof", "MIT"),
                package("lib", "MIT/Apache-2.0"),
                package("app", "MIT"),
            ],
            "resolve": {"nodes": [
                {"id": "app", "deps": [
                    dependency("lib", Value::Null),
                    dependency("proof", json!("dev")),
                ]},
                {"id": "lib", "deps": []},
                {"id": "proof", "deps": []},
            ]},
        })
    }

    #[test]
    fn needed_crates_are_listed_with_licences() {
        let time = SourceTime { seconds: 0, text: "1970-01-01T00:00:00Z".to_owned() };
        let document = describe_sbom_document(&metadata(), "app", &time, "00");
        let names: Vec<&str> =
            sbom_array(&document["packages"]).map(|found| sbom_text(&found["name"])).collect();
        assert_eq!(names, ["app", "lib"]);
        assert_eq!(document["packages"][1]["licenseDeclared"], "MIT OR Apache-2.0");
        assert_eq!(document["packages"][1]["SPDXID"], "SPDXRef-lib-1.0.0-x");
        let relationships: Vec<&str> = sbom_array(&document["relationships"])
            .map(|found| sbom_text(&found["relatedSpdxElement"]))
            .collect();
        assert_eq!(relationships, ["SPDXRef-app-1.0.0-x", "SPDXRef-lib-1.0.0-x"]);
        assert_eq!(document, describe_sbom_document(&metadata(), "app", &time, "00"));
    }
}
