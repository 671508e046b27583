//! `cargo xtask package`: wheel, Debian package, tarball, image and list of parts, with checksums.
//!
//! [`run_package`] builds the program, has it write its manual pages and completions, and lays out
//! the files of each package ([`package_contents`]). The archives are written here, byte for byte the same
//! each time: they carry the time of the last commit, sorted entries and fixed owners.

mod archive;
mod c_library;
mod deb;
mod file_tree;
mod image;
mod package_checksum;
mod package_contents;
mod program_build;
mod sbom;
mod source_time;

use crate::child_command::{CommandFailure, CommandLine};
use crate::installed_programs::is_program_installed;
use crate::python;
use crate::workspace::Workspace;
use archive::{gzip_archive, tar_archive};
use c_library::build_c_library;
use deb::{DebControl, deb_package};
use file_tree::file_tree_failure;
use image::{ImageDescription, image_package_contents, package_oci_image};
use package_checksum::sha256_package_checksum;
use package_contents::{
    GeneratedContents, c_tarball_package_contents, debian_package_contents,
    generate_package_contents, tarball_package_contents,
};
use program_build::{Program, ProgramBuildSettings};
use source_time::SourceTime;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The version of the workspace, which all packages have in their names.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// 20,000,000 bytes (20 MB): the largest Debian package or image; a larger one fails `cargo xtask
/// package`. The limit is chosen, since clusters fetch them on every node.
const PACKAGE_BYTES_MAX: usize = 20_000_000;

/// The packages by file name.
type Packages = BTreeMap<String, Vec<u8>>;

/// Runs `cargo xtask package`. With `is_verified` everything is built a second time, in another
/// folder, and the packages of both must be equal.
pub fn run_package(is_verified: bool) -> ExitCode {
    let workspace = Workspace::current(false);
    match make_packages(&workspace, is_verified) {
        Ok(folder) => {
            println!("\npackages and SHA256SUMS: {}", folder.display());
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("{}\nRepeat with:\n  {}", failure.why, failure.repeat);
            ExitCode::FAILURE
        }
    }
}

/// Returns the folder of the finished packages.
pub fn packages_folder(workspace: &Workspace) -> PathBuf {
    workspace.target_folder().join("package/dist")
}

/// Builds and writes all packages with their checksums, and returns their folder. With
/// `is_verified`, compares them with a second build first.
fn make_packages(workspace: &Workspace, is_verified: bool) -> Result<PathBuf, CommandFailure> {
    let folder = workspace.target_folder().join("package");
    let time = SourceTime::find(&workspace.root)?;
    let packages = build_packages(&workspace.root, &folder.join("build"), &time)?;
    if is_verified {
        let again = folder.join("again");
        // Outputs of an earlier run would make both builds one.
        let _ = std::fs::remove_dir_all(&again);
        println!("\n== the same again, in {} ==", again.display());
        let second = build_packages(&workspace.root, &again, &time)?;
        check_equal_packages(&packages, &second)?;
        println!("\nbuilt twice, equal bytes: {} files", packages.len());
        let _ = std::fs::remove_dir_all(&again);
    }
    let dist = packages_folder(workspace);
    let _ = std::fs::remove_dir_all(&dist);
    std::fs::create_dir_all(&dist).map_err(|error| file_tree_failure(&dist, &error))?;
    let mut sums = String::new();
    println!();
    for (name, bytes) in &packages {
        write_package_file(&dist.join(name), bytes)?;
        sums += &format!("{}  {name}\n", sha256_package_checksum(bytes)?);
        println!("{:>12} bytes  {name}", bytes.len());
    }
    write_package_file(&dist.join("SHA256SUMS"), sums.as_bytes())?;
    check_package_sizes(&packages)?;
    Ok(dist)
}

/// Builds the program in a folder, and all packages of it.
fn build_packages(
    root: &Path,
    folder: &Path,
    time: &SourceTime,
) -> Result<Packages, CommandFailure> {
    let settings = ProgramBuildSettings { root, folder, time };
    let program = settings.build_program()?;
    let portable = settings.build_static_program()?;
    let generated = generate_package_contents(root, &program, folder)?;
    let metadata = sbom::sbom_cargo_metadata(root, &package_rust_target())?;
    let mut packages = Packages::new();
    let c_library = build_c_library(&settings)?;
    let architecture = package_architecture();
    let library = format!("{}-linux-gnu", std::env::consts::ARCH);
    let files = debian_package_contents(root, &program, &generated, &c_library, &library)?;
    let scripts = read_package_scripts(root)?;
    let depends = debian_package_depends(&[&program, &c_library.shared]);
    let control = DebControl { version: VERSION, architecture, depends: &depends };
    let package = deb_package(&control, &files, &scripts, time.seconds)?;
    packages.insert(format!("landbridge_{VERSION}_{architecture}.deb"), package);
    let name = format!(
        "landbridge-c-{VERSION}-{}-linux-{}",
        std::env::consts::ARCH,
        package_libc_name(&c_library.shared)
    );
    let files = c_tarball_package_contents(root, &c_library)?;
    packages.insert(
        format!("{name}.tar.gz"),
        gzip_archive(&tar_archive(&files, &format!("{name}/"), time.seconds)),
    );
    let portable = portable.as_ref().unwrap_or(&program);
    add_portable_packages(&mut packages, root, portable, &generated, time)?;
    let parts = sbom::sbom_document(root, &metadata, time)?;
    packages.insert(format!("landbridge-{VERSION}.spdx.json"), parts.into_bytes());
    add_wheel_package(&mut packages, &settings)?;
    Ok(packages)
}

/// Adds the tarball and the image, of a static program where there is one.
fn add_portable_packages(
    packages: &mut Packages,
    root: &Path,
    program: &Program,
    generated: &GeneratedContents,
    time: &SourceTime,
) -> Result<(), CommandFailure> {
    let libc = package_libc_name(program);
    let name = format!("landbridge-{VERSION}-{}-linux-{libc}", std::env::consts::ARCH);
    let files = tarball_package_contents(root, program, generated)?;
    let tarball = gzip_archive(&tar_archive(&files, &format!("{name}/"), time.seconds));
    packages.insert(format!("{name}.tar.gz"), tarball);
    let architecture = package_architecture();
    let name = format!("landbridge:{VERSION}");
    let description = ImageDescription { name: &name, version: VERSION, architecture, time };
    let image = package_oci_image(&description, &image_package_contents(root, program)?)?;
    packages.insert(format!("landbridge-{VERSION}-oci-{architecture}.tar"), image);
    Ok(())
}

/// Returns the C library that a program takes, as names of packages have it.
fn package_libc_name(program: &Program) -> String {
    program.glibc.map_or("musl".to_owned(), |(major, minor)| format!("glibc{major}.{minor}"))
}

/// Builds the wheel, says where it needs a newer glibc than manylinux2014 has, and has auditwheel
/// look at the wheel where that program is installed.
fn add_wheel_package(
    packages: &mut Packages,
    settings: &ProgramBuildSettings<'_>,
) -> Result<(), CommandFailure> {
    let dist = settings.folder.join("wheel");
    let _ = std::fs::remove_dir_all(&dist);
    let wheel = python::build_python_release_wheel(settings.root, &dist, settings.variables())?;
    let path = Path::new(&wheel);
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if !name.contains("manylinux2014") && !name.contains("manylinux_2_17") {
        println!(
            "{name}: needs a newer glibc than manylinux2014 has, as its name says; for it, run \
             this command where glibc is 2.17, as in the image of that name"
        );
    }
    if is_program_installed("auditwheel") {
        CommandLine::in_path(&["auditwheel", "show", &wheel]).run_to_success(settings.root)?;
    } else {
        println!("LEFT OUT: a second look at the wheel: auditwheel is not installed");
    }
    let bytes = std::fs::read(path).map_err(|error| file_tree_failure(path, &error))?;
    packages.insert(name, bytes);
    Ok(())
}

/// Returns the scripts that dpkg runs, by their names.
fn read_package_scripts(root: &Path) -> Result<Vec<(&'static str, Vec<u8>)>, CommandFailure> {
    let read = |name: &'static str| -> Result<(&'static str, Vec<u8>), CommandFailure> {
        let file = root.join("configs/deploy/debian").join(name);
        let script = std::fs::read(&file).map_err(|error| file_tree_failure(&file, &error))?;
        Ok((name, script))
    };
    ["postinst", "prerm", "postrm"].into_iter().map(read).collect()
}

/// Returns Debian's packages of the libraries that programs load.
fn debian_package_depends(programs: &[&Program]) -> String {
    let loads = |name: &str| {
        let mut libraries = programs.iter().flat_map(|program| &program.libraries);
        libraries.any(|path| path.to_string_lossy().contains(name))
    };
    let glibc = programs.iter().filter_map(|program| program.glibc).max();
    let glibc = glibc.map(|(major, minor)| format!("libc6 (>= {major}.{minor})"));
    let gcc = loads("libgcc_s.so").then(|| "libgcc-s1".to_owned());
    glibc.into_iter().chain(gcc).collect::<Vec<_>>().join(", ")
}

/// Returns the name of this host's architecture that Debian and OCI share.
pub fn package_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Returns Rust's name of this host.
fn package_rust_target() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

/// Fails with the names of all packages that differ between two builds.
fn check_equal_packages(one: &Packages, two: &Packages) -> Result<(), CommandFailure> {
    let names = one.keys().chain(two.keys().filter(|name| !one.contains_key(*name)));
    let differing: Vec<&str> =
        names.filter(|name| one.get(*name) != two.get(*name)).map(String::as_str).collect();
    if differing.is_empty() {
        return Ok(());
    }
    Err(package_failure(format!("built twice, unequal bytes: {}", differing.join(", "))))
}

/// Fails with the names of packages that are too large to be fetched on every node.
fn check_package_sizes(packages: &Packages) -> Result<(), CommandFailure> {
    let is_fetched = |name: &str| name.ends_with(".deb") || name.contains("-oci-");
    let large = packages.iter().filter(|(_, bytes)| bytes.len() > PACKAGE_BYTES_MAX);
    let large: Vec<&str> =
        large.map(|(name, _)| name.as_str()).filter(|name| is_fetched(name)).collect();
    if large.is_empty() {
        return Ok(());
    }
    let (names, limit) = (large.join(", "), PACKAGE_BYTES_MAX);
    Err(package_failure(format!("{names}: more than {limit} bytes")))
}

/// Writes a file of the finished packages.
fn write_package_file(path: &Path, bytes: &[u8]) -> Result<(), CommandFailure> {
    std::fs::write(path, bytes).map_err(|error| file_tree_failure(path, &error))
}

/// Returns a failure of packaging, for the reason `why`.
fn package_failure(why: String) -> CommandFailure {
    CommandFailure { why, repeat: "cargo xtask package --verify".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_that_differ_are_named() {
        let packages = |second: &[u8]| {
            Packages::from([("a.deb".to_owned(), vec![1]), ("b.tar".to_owned(), second.to_vec())])
        };
        assert!(check_equal_packages(&packages(b"x"), &packages(b"x")).is_ok());
        let failure = check_equal_packages(&packages(b"x"), &packages(b"y")).err();
        assert!(failure.is_some_and(|failure| failure.why.ends_with("unequal bytes: b.tar")));
        let failure = check_equal_packages(&packages(b"x"), &Packages::new()).err();
        assert!(failure.is_some_and(|failure| failure.why.ends_with(": a.deb, b.tar")));
    }

    #[test]
    fn a_package_depends_on_the_libraries_that_it_loads() {
        let program = |libraries: &[&str], glibc| Program {
            path: PathBuf::new(),
            libraries: libraries.iter().map(PathBuf::from).collect(),
            glibc,
        };
        let dynamic = program(&["/lib/libgcc_s.so.1", "/lib/libc.so.6"], Some((2, 34)));
        assert_eq!(debian_package_depends(&[&dynamic]), "libc6 (>= 2.34), libgcc-s1");
        assert_eq!(debian_package_depends(&[&program(&[], None)]), "");
        let newer = program(&["/lib/libc.so.6"], Some((2, 36)));
        assert_eq!(debian_package_depends(&[&dynamic, &newer]), "libc6 (>= 2.36), libgcc-s1");
    }

    #[test]
    fn a_package_too_large_for_nodes_is_refused() {
        let large = vec![0; PACKAGE_BYTES_MAX + 1];
        let of = |name: &str| Packages::from([(name.to_owned(), large.clone())]);
        assert!(check_package_sizes(&of("landbridge_1_amd64.deb")).is_err());
        assert!(check_package_sizes(&of("landbridge-1.tar.gz")).is_ok());
    }
}
