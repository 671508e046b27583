//! The C library as cargo built it for this test, and programs compiled against it.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How a program gets the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Linkage {
    /// By its soname, when it starts.
    Shared,
    /// Inside the program, which AddressSanitizer watches.
    Sanitized,
}

/// A compiled program in a temporary folder.
pub struct Program {
    folder: tempfile::TempDir,
}

impl Program {
    /// Compiles a program of `programs/`.
    pub fn of_test(name: &str, linkage: Linkage) -> Self {
        let folder =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/processes/c_client/programs");
        Self::compile(&folder.join(format!("{name}.c")), linkage)
    }

    /// Compiles a program. Warnings are errors.
    pub fn compile(source: &Path, linkage: Linkage) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new("cc");
        command
            .args(["-std=c99", "-D_POSIX_C_SOURCE=200809L", "-g", "-pthread"])
            .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"])
            .arg(include_folder())
            .arg("-o")
            .arg(folder.path().join("program"))
            .arg(source);
        match linkage {
            Linkage::Shared => {
                let library = folder.path().join("liblandbridge.so.0");
                std::fs::copy(built("so"), &library).expect("copied");
                symlink(&library, folder.path().join("liblandbridge.so")).expect("linked");
                command.arg("-L").arg(folder.path()).arg("-llandbridge");
            }
            Linkage::Sanitized => {
                command.args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
                command.arg(built("a")).args(["-lm", "-ldl", "-lrt", "-lutil"]);
            }
        }
        let output = command.output().expect("a C compiler is installed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self { folder }
    }

    /// Returns the command that runs the program.
    pub fn command(&self) -> Command {
        let mut command = Command::new(self.folder.path().join("program"));
        command.env("LD_LIBRARY_PATH", self.folder.path());
        command
    }
}

/// Returns the folder of the header.
fn include_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../capi/include")
}

/// Returns the library with this extension, which lies beside this test.
fn built(extension: &str) -> PathBuf {
    let test = std::env::current_exe().expect("it runs");
    test.with_file_name(format!("liblandbridge_c.{extension}"))
}

/// Returns the functions that the header declares.
pub fn declared_functions() -> BTreeSet<String> {
    let text = std::fs::read_to_string(include_folder().join("landbridge.h")).expect("readable");
    let declarations = text.lines().filter(|line| !line.starts_with([' ', '/', '#', '}']));
    let names = declarations.filter_map(|line| {
        let (before, _) = line.split_once('(')?;
        let name = before.rsplit([' ', '*']).next()?;
        name.starts_with("landbridge_").then(|| name.to_owned())
    });
    names.collect()
}

/// Returns every symbol that the shared library gives to programs.
pub fn exported_functions() -> BTreeSet<String> {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(built("so")).output();
    let output = output.expect("binutils come with the C compiler");
    assert!(output.status.success(), "{output:?}");
    let listed = String::from_utf8(output.stdout).expect("text");
    listed.lines().filter_map(|line| Some(line.split(' ').next_back()?.to_owned())).collect()
}

/// Returns the name by which programs ask for the shared library.
pub fn soname() -> String {
    let output = Command::new("readelf").arg("-d").arg(built("so")).output();
    let listed = String::from_utf8(output.expect("as above").stdout).expect("text");
    let line = listed.lines().find(|line| line.contains("(SONAME)")).expect("it has one");
    let name = line.split(['[', ']']).nth(1).expect("in brackets");
    name.to_owned()
}

/// Compiles a program in C++ that includes the header.
pub fn check_header_in_cpp() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("program.cc");
    let text = "#include <landbridge.h>\n\
                landbridge_connect_options one = LANDBRIDGE_CONNECT_OPTIONS;\n\
                landbridge_call_options two = LANDBRIDGE_CALL_OPTIONS;\n\
                landbridge_info three = LANDBRIDGE_INFO;\n";
    std::fs::write(&source, text).expect("written");
    let output = Command::new("c++")
        .args(["-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"])
        .args([include_folder().as_path(), &source])
        .output()
        .expect("installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
