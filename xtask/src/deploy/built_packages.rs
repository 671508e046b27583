//! The packages that `cargo xtask package` made last: they unpack, and their programs run.

use super::deploy_check::{deploy_check_failure, deploy_check_scratch_folder, skip_deploy_check};
use crate::child_command::{CommandFailure, CommandLine};
use crate::installed_programs::is_program_installed;
use crate::package::{package_architecture, packages_folder};
use crate::tally::Tally;
use crate::workspace::Workspace;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The line that `landbridge --version` must print in a package of this workspace.
const VERSION_LINE: &str = concat!("landbridge ", env!("CARGO_PKG_VERSION"));

/// Checks sums, runs the program of the Debian package and, in its own root, that of the image.
pub fn check_built_packages(
    workspace: &Workspace,
    tally: &mut Tally,
) -> Result<(), CommandFailure> {
    let dist = packages_folder(workspace);
    if !dist.join("SHA256SUMS").is_file() {
        skip_deploy_check(tally, "packages: none; make them by `cargo xtask package`");
        return Ok(());
    }
    let sums = CommandLine::in_path(&["sha256sum", "--check", "--strict", "SHA256SUMS"]);
    sums.in_folder(&dist).run_to_success(&workspace.root)?;
    tally.passed += 1;
    let scratch = deploy_check_scratch_folder(workspace, "packages")?;
    if is_program_installed("dpkg-deb") {
        let package = find_built_package_file(&dist, ".deb")?;
        let inside = scratch.join("deb");
        let words = ["dpkg-deb", "--extract", &package, &inside.display().to_string()];
        CommandLine::in_path(&words).run_to_success(&workspace.root)?;
        let program = inside.join("usr/bin/landbridge");
        expect_built_package_version(workspace, &CommandLine::program(&program, &["--version"]))?;
        let completions = inside.join("usr/share/bash-completion/completions/landbridge");
        let words = ["bash", "-n", &completions.display().to_string()];
        CommandLine::in_path(&words).run_to_success(&workspace.root)?;
        compile_example_of_built_package(workspace, &inside)?;
        tally.passed += 3;
    } else {
        skip_deploy_check(tally, "packages: no dpkg-deb unpacks the Debian package");
    }
    let root = unpack_built_image(
        workspace,
        &find_built_package_file(&dist, &format!("-oci-{}.tar", package_architecture()))?,
    )?;
    let enter = format!("--root={}", root.display());
    let run = ["unshare", "--map-root-user", &enter, "/usr/bin/landbridge", "--version"];
    let may_unshare = CommandLine::in_path(&["unshare", "--map-root-user", "true"]);
    if may_unshare.capture(&workspace.root).is_ok_and(|(status, _)| status.success()) {
        expect_built_package_version(workspace, &CommandLine::in_path(&run))?;
        tally.passed += 1;
    } else {
        skip_deploy_check(
            tally,
            "packages: this user may not run the image's program in its own root",
        );
    }
    Ok(())
}

/// Compiles the example in C against the unpacked files of the Debian package, with the shared and
/// with the static library.
fn compile_example_of_built_package(
    workspace: &Workspace,
    inside: &Path,
) -> Result<(), CommandFailure> {
    let place = |path: &str| inside.join(path).display().to_string();
    let folder = format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let shared = format!("{folder}/liblandbridge.so");
    let source = place("usr/share/doc/landbridge/examples/c/all_reduce.c");
    for library in [shared, format!("{folder}/liblandbridge.a")] {
        let (include, program) = (place("usr/include"), place("all_reduce"));
        let library = place(&library);
        let words = ["cc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-I", &include, &source];
        let rest = [library.as_str(), "-lm", "-lpthread", "-ldl", "-o", &program];
        CommandLine::in_path(&[&words[..], &rest[..]].concat()).run_to_success(&workspace.root)?;
    }
    Ok(())
}

/// Unpacks the layer of an image as a runtime does: from the index over the manifest. Returns the
/// folder of its files.
fn unpack_built_image(workspace: &Workspace, archive: &str) -> Result<PathBuf, CommandFailure> {
    let scratch = deploy_check_scratch_folder(workspace, "image")?;
    let (layout, files) = (scratch.join("layout"), scratch.join("files"));
    unpack_built_package(workspace, archive, &layout)?;
    unpack_built_package(workspace, &built_package_layer_path(&layout)?, &files)?;
    Ok(files)
}

/// Unpacks a tar archive, compressed or not, into a new folder.
fn unpack_built_package(
    workspace: &Workspace,
    archive: &str,
    folder: &Path,
) -> Result<(), CommandFailure> {
    std::fs::create_dir_all(folder).map_err(|why| deploy_check_failure(&folder.display(), &why))?;
    let folder = folder.display().to_string();
    let words = ["tar", "--extract", "--file", archive, "--directory", &folder];
    CommandLine::in_path(&words).run_to_success(&workspace.root)
}

/// Returns the path of the only layer of an unpacked layout.
fn built_package_layer_path(layout: &Path) -> Result<String, CommandFailure> {
    let read = |path: &Path| -> Result<Value, CommandFailure> {
        let text =
            std::fs::read(path).map_err(|why| deploy_check_failure(&path.display(), &why))?;
        serde_json::from_slice(&text).map_err(|why| deploy_check_failure(&path.display(), &why))
    };
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().unwrap_or_default();
        layout.join("blobs").join(digest.replace(':', "/"))
    };
    let index = read(&layout.join("index.json"))?;
    let manifest = read(&blob(&index["manifests"][0]))?;
    Ok(blob(&manifest["layers"][0]).display().to_string())
}

/// Runs a program that must succeed and print the version of this workspace, and nothing else.
fn expect_built_package_version(
    workspace: &Workspace,
    line: &CommandLine,
) -> Result<(), CommandFailure> {
    let (status, text) = line.capture(&workspace.root)?;
    if status.success() && text.trim() == VERSION_LINE {
        return Ok(());
    }
    Err(line.failure(&format!("{status}, and prints {text:?} in place of {VERSION_LINE:?}")))
}

/// Returns the path of the first file of a folder whose name has this ending. The caller expects
/// only one.
fn find_built_package_file(folder: &Path, ending: &str) -> Result<String, CommandFailure> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths = entries.map(|entry| entry.path().display().to_string());
    let found = paths.find(|path| path.ends_with(ending));
    found.ok_or_else(|| deploy_check_failure(&folder.display(), &format!("no file *{ending}")))
}
