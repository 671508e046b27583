//! The library for programs in C: built, named as programs ask for it, and described for pkg-config.

use super::file_tree::{FileTree, READABLE_MODE, file_tree_failure};
use super::program_build::{Program, ProgramBuildSettings};
use crate::child_command::{CommandFailure, CommandLine};
use std::path::{Path, PathBuf};

/// The name of the cargo package of the C library.
const C_PACKAGE: &str = "landbridge-c";
/// The path in the workspace of the C header, which packages install as `landbridge.h`.
const C_HEADER_PATH: &str = "capi/include/landbridge.h";
/// The version of the workspace, which pkg-config tells programs as that of the C library.
const LIBRARY_VERSION: &str = env!("CARGO_PKG_VERSION");
/// The name inside the shared library by which programs ask for it at run time; `capi/build.rs`
/// gives it.
const SONAME: &str = "liblandbridge.so.0";
/// The linker's flags for the system libraries that a program needs when it has the static C
/// library inside. Programs read them from pkg-config.
const STATIC_NEEDS: &str = "-lgcc_s -lm -lpthread -ldl -lrt -lutil -lc";

/// The library, its header, and what it needs.
pub struct CLibrary {
    /// The shared library.
    pub shared: Program,
    header: Vec<u8>,
    shared_bytes: Vec<u8>,
    static_bytes: Vec<u8>,
}

/// Builds the C library.
pub fn build_c_library(settings: &ProgramBuildSettings<'_>) -> Result<CLibrary, CommandFailure> {
    settings
        .cargo(&["build", "--release", "--locked", "--package", C_PACKAGE])
        .run_to_success(settings.root)?;
    let release = settings.folder.join("release");
    let read = |path: &Path| std::fs::read(path).map_err(|error| file_tree_failure(path, &error));
    let shared = release.join("liblandbridge_c.so");
    let shared_bytes = read(&shared)?;
    Ok(CLibrary {
        shared: settings.examine(shared)?,
        header: read(&settings.root.join(C_HEADER_PATH))?,
        shared_bytes,
        static_bytes: read(&reduce_c_library_archive(settings, &release)?)?,
    })
}

/// Makes one object of the static library as cargo built it, with the functions of the header as its
/// only global symbols; returns the path of the archive.
///
/// Cargo's has all code of all crates, with symbols that another Rust library in the same program
/// would define as well: 137 MB in place of 7.
fn reduce_c_library_archive(
    settings: &ProgramBuildSettings<'_>,
    release: &Path,
) -> Result<PathBuf, CommandFailure> {
    let place = |name: &str| release.join(name).display().to_string();
    let (whole, joined, object) =
        (place("liblandbridge_c.a"), place("landbridge_c.joined.o"), place("landbridge_c.o"));
    let line = CommandLine::in_path(&["nm", "-D", "--defined-only", &place("liblandbridge_c.so")]);
    let (status, listed) = line.capture(settings.root)?;
    let symbols: Vec<&str> = listed.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    if !status.success() || symbols.is_empty() {
        return Err(line.failure(&"the shared library has no symbols"));
    }
    let run = |words: Vec<&str>| CommandLine::in_path(&words).run_to_success(settings.root);
    let mut link = vec!["ld", "-r", "--gc-sections", "-o", &joined];
    link.extend(symbols.iter().flat_map(|symbol| ["-u", symbol]));
    run([&link[..], &[&whole]].concat())?;
    let keep: Vec<String> =
        symbols.iter().map(|symbol| format!("--keep-global-symbol={symbol}")).collect();
    // The standard library brings its bitcode along, which linkers take for LTO.
    let mut copy = vec!["objcopy", "--strip-debug", "-R", ".llvmbc", "-R", ".llvmcmd"];
    copy.extend(keep.iter().map(String::as_str));
    run([&copy[..], &[&joined, &object]].concat())?;
    let archive = release.join("liblandbridge.a");
    let _ = std::fs::remove_file(&archive);
    let path = archive.display().to_string();
    run(vec!["ar", "rcsD", &path, &object])?;
    Ok(archive)
}

impl CLibrary {
    /// Returns all files below the folder `prefix`, with libraries in its folder `library`.
    pub fn files(&self, prefix: &str, library: &str) -> FileTree {
        let mut tree = FileTree::default();
        tree.add_file("include/landbridge.h", READABLE_MODE, self.header.as_slice());
        tree.add_file(&format!("{library}/{SONAME}"), READABLE_MODE, self.shared_bytes.as_slice());
        tree.add_link(&format!("{library}/liblandbridge.so"), SONAME);
        tree.add_file(
            &format!("{library}/liblandbridge.a"),
            READABLE_MODE,
            self.static_bytes.as_slice(),
        );
        let description = format!("{library}/pkgconfig/landbridge.pc");
        tree.add_file(&description, READABLE_MODE, describe_c_library(prefix, library));
        tree
    }
}

/// Returns the file by which pkg-config finds the library.
fn describe_c_library(prefix: &str, library: &str) -> String {
    format!(
        "prefix={prefix}\nlibdir=${{prefix}}/{library}\nincludedir=${{prefix}}/include\n\n\
         Name: landbridge\nDescription: collectives across data centres\nVersion: {LIBRARY_VERSION}\n\
         Cflags: -I${{includedir}}\nLibs: -L${{libdir}} -llandbridge\n\
         Libs.private: {STATIC_NEEDS}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::installed_programs::is_program_installed;
    use std::process::Command;

    #[test]
    fn pkg_config_finds_the_folders_of_the_library() {
        if !is_program_installed("pkg-config") {
            let line = b"\nSKIPPED: package: no pkg-config reads its file\n";
            std::io::Write::write_all(&mut std::io::stdout(), line).expect("open");
            return;
        }
        let folder = std::env::temp_dir().join(format!("xtask-pc-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join("landbridge.pc");
        std::fs::write(&file, describe_c_library("/opt/lb", "lib/one")).expect("written");
        let flags = |words: &[&str]| {
            let output = Command::new("pkg-config").args(words).arg(&file).output().expect("runs");
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).expect("text").trim().to_owned()
        };
        let found = ["--libs", "--cflags", "--modversion"].map(|word| flags(&[word]));
        std::fs::remove_dir_all(&folder).expect("ours");
        let wanted = ["-L/opt/lb/lib/one -llandbridge", "-I/opt/lb/include", LIBRARY_VERSION];
        assert_eq!(found, wanted);
    }

    #[test]
    fn programs_find_the_library_by_its_soname() {
        let program = Program { path: "x".into(), libraries: Vec::new(), glibc: None };
        let library = CLibrary {
            shared: program,
            header: b"h".to_vec(),
            shared_bytes: b"so".to_vec(),
            static_bytes: b"a".to_vec(),
        };
        let tree = library.files("/usr", "lib/here");
        let paths: Vec<&str> = tree.entries().map(|(path, _)| path).collect();
        assert!(paths.contains(&"lib/here/liblandbridge.so"), "{paths:?}");
        assert_eq!(tree.files().count(), 4, "the link is no file");
    }
}
