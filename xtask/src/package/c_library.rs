//! The library for programs in C, where the workspace has one.

use super::file_tree::FileTree;
use super::program::BuildSettings;
use crate::command::Failure;
use serde_json::Value;

/// Folder of the package of the C library, below the root.
const FOLDER: &str = "capi";

/// A library for programs in C, and its header.
pub struct CLibrary {
    /// Headers by name.
    pub headers: FileTree,
    /// Shared and static library by name.
    pub libraries: FileTree,
}

/// Builds the C library. `None`, with a line on stdout, where the workspace has none.
pub fn build_c_library(
    settings: &BuildSettings<'_>,
    metadata: &Value,
) -> Result<Option<CLibrary>, Failure> {
    let manifest = settings.root.join(FOLDER).join("Cargo.toml").display().to_string();
    let mut packages = metadata["packages"].as_array().into_iter().flatten();
    let Some(package) = packages.find(|found| found["manifest_path"] == *manifest) else {
        println!("LEFT OUT: C header and libraries: there is no package {FOLDER}");
        return Ok(None);
    };
    let name = package["name"].as_str().unwrap_or_default();
    settings
        .cargo(&["build", "--release", "--locked", "--package", name])
        .run_to_success(settings.root)?;
    let mut found = CLibrary { headers: FileTree::default(), libraries: FileTree::default() };
    for file in library_files(package) {
        let built = settings.folder.join("release").join(&file);
        found.libraries.add_from_disk(&built, &file)?;
    }
    found.headers.add_tracked(settings.root, &format!("{FOLDER}/include/"), "")?;
    Ok(Some(found))
}

/// Returns the names of the libraries that a package's targets make.
fn library_files(package: &Value) -> Vec<String> {
    let mut files = Vec::new();
    for target in package["targets"].as_array().into_iter().flatten() {
        let name = target["name"].as_str().unwrap_or_default().replace('-', "_");
        for kind in target["crate_types"].as_array().into_iter().flatten() {
            match kind.as_str() {
                Some("cdylib") => files.push(format!("lib{name}.so")),
                Some("staticlib") => files.push(format!("lib{name}.a")),
                _ => {}
            }
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn libraries_are_named_as_cargo_names_them() {
        let package = json!({"targets": [
            {"name": "land-bridge", "crate_types": ["cdylib", "staticlib", "rlib"]},
            {"name": "example", "crate_types": ["bin"]},
        ]});
        assert_eq!(library_files(&package), ["libland_bridge.so", "libland_bridge.a"]);
    }
}
