//! Which files each package has, and where.

use super::archive::gzip_archive;
use super::c_library::CLibrary;
use super::file_tree::{EXECUTABLE_MODE, FileTree, READABLE_MODE, file_tree_failure};
use super::program_build::Program;
use crate::child_command::{CommandFailure, CommandLine};
use std::path::Path;

/// Files that are made by running the program.
pub struct GeneratedContents {
    /// Manual pages by name, such as `landbridge-run.1`.
    pages: FileTree,
    /// Completions for bash, fish and zsh.
    completions: [String; 3],
}

/// Runs the program to write its manual pages and completions.
pub fn generate_package_contents(
    root: &Path,
    program: &Program,
    scratch: &Path,
) -> Result<GeneratedContents, CommandFailure> {
    let folder = scratch.join("man1");
    let _ = std::fs::remove_dir_all(&folder);
    let out = folder.display().to_string();
    CommandLine::program(&program.path, &["man", "--out", &out]).run_to_success(root)?;
    let mut pages = FileTree::default();
    for entry in std::fs::read_dir(&folder).map_err(|error| file_tree_failure(&folder, &error))? {
        let page = entry.map_err(|error| file_tree_failure(&folder, &error))?.path();
        let name = page.file_name().unwrap_or_default().to_string_lossy().into_owned();
        pages.add_from_disk(&page, &name)?;
    }
    let complete = |shell: &str| {
        let line = CommandLine::program(&program.path, &["completions", shell]);
        let (status, script) = line.capture(root)?;
        if status.success() { Ok(script) } else { Err(line.failure(&status)) }
    };
    let completions = [complete("bash")?, complete("fish")?, complete("zsh")?];
    Ok(GeneratedContents { pages, completions })
}

/// Returns the files of the Debian package. `library` is the folder of libraries in Debian, such as
/// `x86_64-linux-gnu`.
pub fn debian_package_contents(
    root: &Path,
    program: &Program,
    generated: &GeneratedContents,
    c_library: &CLibrary,
    library: &str,
) -> Result<FileTree, CommandFailure> {
    let mut tree = FileTree::default();
    tree.add_folder("etc/landbridge", EXECUTABLE_MODE, 0);
    tree.add_from_disk(&program.path, "usr/bin/landbridge")?;
    for (name, page) in generated.pages.files() {
        tree.add_file(&format!("usr/share/man/man1/{name}.gz"), READABLE_MODE, gzip_archive(page));
    }
    let [bash, fish, zsh] = &generated.completions;
    tree.add_file("usr/share/bash-completion/completions/landbridge", READABLE_MODE, bash.as_str());
    tree.add_file(
        "usr/share/fish/vendor_completions.d/landbridge.fish",
        READABLE_MODE,
        fish.as_str(),
    );
    tree.add_file("usr/share/zsh/vendor-completions/_landbridge", READABLE_MODE, zsh.as_str());
    let systemd = root.join("configs/deploy/systemd");
    for (file, place) in [
        ("landbridge@.service", "usr/lib/systemd/system/landbridge@.service"),
        ("landbridge.sysusers", "usr/lib/sysusers.d/landbridge.conf"),
        ("landbridge.tmpfiles", "usr/lib/tmpfiles.d/landbridge.conf"),
    ] {
        tree.add_from_disk(&systemd.join(file), place)?;
    }
    tree.add_tree("usr/", &c_library.files("/usr", &format!("lib/{library}")));
    let documents = "usr/share/doc/landbridge";
    tree.add_tracked(root, "examples/c", &format!("{documents}/examples/c"))?;
    tree.add_from_disk(&root.join("LICENSE"), &format!("{documents}/copyright"))?;
    let changes = root.join("CHANGELOG.md");
    let changes = std::fs::read(&changes).map_err(|error| file_tree_failure(&changes, &error))?;
    tree.add_file(&format!("{documents}/changelog.gz"), READABLE_MODE, gzip_archive(&changes));
    add_example_package_contents(root, &mut tree, &format!("{documents}/examples"))?;
    Ok(tree)
}

/// Returns the files of the tarball, below the folder that it makes.
pub fn tarball_package_contents(
    root: &Path,
    program: &Program,
    generated: &GeneratedContents,
) -> Result<FileTree, CommandFailure> {
    let mut tree = FileTree::default();
    tree.add_from_disk(&program.path, "bin/landbridge")?;
    for (name, page) in generated.pages.files() {
        tree.add_file(&format!("share/man/man1/{name}"), READABLE_MODE, page);
    }
    let [bash, fish, zsh] = &generated.completions;
    tree.add_file("share/bash-completion/completions/landbridge", READABLE_MODE, bash.as_str());
    tree.add_file("share/fish/vendor_completions.d/landbridge.fish", READABLE_MODE, fish.as_str());
    tree.add_file("share/zsh/site-functions/_landbridge", READABLE_MODE, zsh.as_str());
    for file in ["LICENSE", "README.md", "CHANGELOG.md"] {
        tree.add_from_disk(&root.join(file), file)?;
    }
    tree.add_tracked(root, "docs", "docs")?;
    add_example_package_contents(root, &mut tree, "configs")?;
    Ok(tree)
}

/// Returns the files of the tarball for programs in C, below the folder that it makes.
pub fn c_tarball_package_contents(
    root: &Path,
    c_library: &CLibrary,
) -> Result<FileTree, CommandFailure> {
    // The file of pkg-config stands in lib/pkgconfig, wherever the tarball is unpacked.
    let mut tree = c_library.files("${pcfiledir}/../..", "lib");
    tree.add_from_disk(&root.join("LICENSE"), "LICENSE")?;
    tree.add_tracked(root, "examples/c", "examples")?;
    Ok(tree)
}

/// Adds the files for deployments and the example of two regions.
fn add_example_package_contents(
    root: &Path,
    tree: &mut FileTree,
    place: &str,
) -> Result<(), CommandFailure> {
    for name in ["fabric.toml", "east.toml", "west.toml"] {
        let file = root.join("configs/two-region").join(name);
        tree.add_from_disk(&file, &format!("{place}/two-region/{name}"))?;
    }
    for name in ["compose", "kubernetes", "slurm", "systemd"] {
        let folder = format!("configs/deploy/{name}");
        tree.add_tracked(root, &folder, &format!("{place}/deploy/{name}"))?;
    }
    Ok(())
}
