//! Builds of the program for packages: optimised, without paths of this machine. Each says what it
//! needs of the system where it runs.

use super::file_tree::file_tree_failure;
use super::source_time::SourceTime;
use crate::child_command::{CommandFailure, CommandLine};
use crate::installed_programs::is_program_installed;
use std::path::{Path, PathBuf};

/// A program or shared library that was built.
pub struct Program {
    /// Path of the file.
    pub path: PathBuf,
    /// Libraries that it loads, by the paths where the loader looks; none if it is static.
    pub libraries: Vec<PathBuf>,
    /// Oldest version of glibc that it runs with, such as 2.34; `None` if it needs none.
    pub glibc: Option<(u32, u32)>,
}

/// Settings of all builds for one set of packages.
pub struct ProgramBuildSettings<'a> {
    /// The root of the workspace.
    pub root: &'a Path,
    /// Folder of the build outputs.
    pub folder: &'a Path,
    /// Time of the source.
    pub time: &'a SourceTime,
}

impl ProgramBuildSettings<'_> {
    /// Returns the variables with which cargo builds the same bytes in every folder.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let cargo_home = std::env::var("CARGO_HOME")
            .unwrap_or_else(|_| format!("{}/.cargo", std::env::var("HOME").unwrap_or_default()));
        // The last that matches counts, so the folder inside the root stands behind it.
        let maps = [
            (cargo_home, "/cargo"),
            (self.root.display().to_string(), "/landbridge"),
            (self.folder.display().to_string(), "/build"),
        ];
        let rust: Vec<String> =
            maps.iter().map(|(from, to)| format!("--remap-path-prefix={from}={to}")).collect();
        let c: Vec<String> =
            maps.iter().map(|(from, to)| format!("-ffile-prefix-map={from}={to}")).collect();
        vec![
            ("CARGO_TARGET_DIR", self.folder.display().to_string()),
            // Flags are separated by this character, so that paths may have spaces.
            ("CARGO_ENCODED_RUSTFLAGS", rust.join("\u{1f}")),
            ("CFLAGS", c.join(" ")),
            ("SOURCE_DATE_EPOCH", self.time.seconds.to_string()),
        ]
    }

    /// Returns a command line of cargo that builds with these settings.
    pub fn cargo(&self, arguments: &[&str]) -> CommandLine {
        let line = CommandLine::cargo(arguments);
        let variables = self.variables().into_iter();
        variables.fold(line, |line, (name, value)| line.with_variable(name, &value))
    }

    /// Builds the program for this host's own libraries.
    pub fn build_program(&self) -> Result<Program, CommandFailure> {
        self.cargo(&["build", "--release", "--locked", "--package", "landbridge"])
            .run_to_success(self.root)?;
        self.examine(self.folder.join("release/landbridge"))
    }

    /// Builds a static program with musl. `None`, with the reason on stdout, where its toolchain is
    /// not installed.
    pub fn build_static_program(&self) -> Result<Option<Program>, CommandFailure> {
        let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
        let line =
            CommandLine::in_path(&["rustc", "--print", "target-libdir", "--target", &target]);
        let (status, libraries) = line.capture(self.root)?;
        let has_compiler = is_program_installed("musl-gcc");
        if !status.success() || !Path::new(libraries.trim()).is_dir() || !has_compiler {
            println!(
                "LEFT OUT: static program: it takes `rustup target add {target}` and musl-gcc \
                 (apt-get install musl-tools); tarball and image get the program with its libraries"
            );
            return Ok(None);
        }
        let build = ["build", "--release", "--locked", "--package", "landbridge"];
        self.cargo(&[&build[..], &["--target", &target]].concat()).run_to_success(self.root)?;
        let path = self.folder.join(&target).join("release/landbridge");
        self.examine(path).map(Some)
    }

    /// Returns the built program at `path` with its shared libraries and the newest version of
    /// glibc that it needs.
    pub fn examine(&self, path: PathBuf) -> Result<Program, CommandFailure> {
        let bytes = std::fs::read(&path).map_err(|error| file_tree_failure(&path, &error))?;
        let line = CommandLine::in_path(&["ldd", &path.display().to_string()]);
        // Its exit code is 1 for a static program.
        let (_, listed) = line.capture(self.root)?;
        Ok(Program {
            libraries: libraries_of_program_build(&listed),
            glibc: newest_glibc_of_program_build(&bytes),
            path,
        })
    }
}

/// Returns the paths of libraries in the output of `ldd`, the loader included.
fn libraries_of_program_build(listed: &str) -> Vec<PathBuf> {
    let paths = listed.lines().filter_map(|line| {
        let place = line.split_once(" => ").map_or(line, |(_, place)| place).trim();
        let path = place.split_whitespace().next()?;
        path.starts_with('/').then(|| PathBuf::from(path))
    });
    paths.collect()
}

/// Returns the newest version of glibc whose symbols a program asks for by name.
fn newest_glibc_of_program_build(program: &[u8]) -> Option<(u32, u32)> {
    let name = b"GLIBC_";
    let starts = program.windows(name.len()).enumerate().filter(|(_, window)| window == name);
    let versions = starts.filter_map(|(at, _)| {
        let text: Vec<u8> = program[at + name.len()..]
            .iter()
            .copied()
            .take_while(|byte| byte.is_ascii_digit() || *byte == b'.')
            .collect();
        let text = String::from_utf8(text).ok()?;
        let mut numbers = text.split('.').map(str::parse::<u32>);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    });
    versions.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_of_ldd_are_paths_of_files() {
        let listed = "\tlinux-vdso.so.1 (0x00007ffbc23f6000)\n\
                      \tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007ffbc22e5000)\n\
                      \t/lib64/ld-linux-x86-64.so.2 (0x00007ffbc23f8000)\n";
        let wanted = ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(libraries_of_program_build(listed), wanted.map(PathBuf::from));
        assert!(libraries_of_program_build("\tstatically linked\n").is_empty());
    }

    #[test]
    fn the_newest_glibc_counts_by_number() {
        let program = b"\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.4\0GLIBC_PRIVATE\0";
        assert_eq!(newest_glibc_of_program_build(program), Some((2, 34)));
        assert_eq!(newest_glibc_of_program_build(b"static"), None);
    }
}
