//! A Debian package: an ar archive of a version, a tar of control files and a tar of files.

use super::archive::{ar_archive, gzip_archive, tar_archive};
use super::file_tree::{EXECUTABLE_MODE, FileTree, READABLE_MODE};
use super::package_checksum::md5_package_checksum;
use crate::child_command::CommandFailure;

/// The fields of a package's control file that depend on the build.
pub struct DebControl<'a> {
    /// Version of the package.
    pub version: &'a str,
    /// Debian's name of the architecture, such as `amd64`.
    pub architecture: &'a str,
    /// Packages that must be installed; empty for none.
    pub depends: &'a str,
}

/// Returns the package of the files of `tree`, with scripts that dpkg runs by their names. The time
/// of all files is `seconds` after 1970.
///
/// # Errors
/// A digest cannot be made.
pub fn deb_package(
    control: &DebControl<'_>,
    tree: &FileTree,
    scripts: &[(&str, Vec<u8>)],
    seconds: u64,
) -> Result<Vec<u8>, CommandFailure> {
    let mut sums = String::new();
    let mut bytes = 0;
    for (path, content) in tree.files() {
        bytes += content.len();
        sums += &format!("{}  {path}\n", md5_package_checksum(content)?);
    }
    let mut files = FileTree::default();
    files.add_file("control", READABLE_MODE, describe_deb_package(control, bytes.div_ceil(1024)));
    files.add_file("md5sums", READABLE_MODE, sums);
    for (name, script) in scripts {
        files.add_file(name, EXECUTABLE_MODE, script.clone());
    }
    let control = gzip_archive(&tar_archive(&files, "./", seconds));
    let data = gzip_archive(&tar_archive(tree, "./", seconds));
    let members: [(&str, &[u8]); 3] =
        [("debian-binary", b"2.0\n"), ("control.tar.gz", &control), ("data.tar.gz", &data)];
    Ok(ar_archive(&members, seconds))
}

/// Returns the control file of a package whose files take `kib` KiB.
fn describe_deb_package(control: &DebControl<'_>, kib: usize) -> String {
    let DebControl { version, architecture, depends } = control;
    let depends = if depends.is_empty() { String::new() } else { format!("Depends: {depends}\n") };
    format!(
        "Package: landbridge\nVersion: {version}\nArchitecture: {architecture}\n\
         Maintainer: The Landbridge developers <landbridge@localhost>\n\
         Installed-Size: {kib}\n{depends}Recommends: systemd\nSection: net\nPriority: optional\n\
         Description: all-reduce across data centres\n \
         A gateway beside the trainers of each cluster lets one training job span several of\n \
         them: it reduces inside the cluster, and exchanges each byte once over long links.\n \
         This package has the gateway, its commands, and a systemd unit for each region.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Returns a small package.
    fn small(text: &str) -> Vec<u8> {
        let control =
            DebControl { version: "1.2.3", architecture: "amd64", depends: "libc6 (>= 2.34)" };
        let mut tree = FileTree::default();
        tree.add_file("usr/bin/program", EXECUTABLE_MODE, text);
        tree.add_folder("etc/program", EXECUTABLE_MODE, 0);
        let scripts = [("postinst", b"#!/bin/sh\n".to_vec())];
        deb_package(&control, &tree, &scripts, 86400).unwrap_or_else(|why| panic!("{}", why.why))
    }

    #[test]
    fn the_same_package_has_the_same_bytes() {
        assert_eq!(small("text"), small("text"));
        assert_ne!(small("text"), small("other"));
    }

    #[test]
    fn dpkg_reads_fields_and_files() {
        let file = std::env::temp_dir().join(format!("xtask-{}.deb", std::process::id()));
        std::fs::write(&file, small("text")).expect("written");
        let show = |flag: &str| {
            let output = Command::new("dpkg-deb").arg(flag).arg(&file).output().ok()?;
            assert!(output.status.success(), "{flag}: {output:?}");
            String::from_utf8(output.stdout).ok()
        };
        let shown = (show("--field"), show("--contents"));
        std::fs::remove_file(&file).expect("ours");
        let (Some(fields), Some(contents)) = shown else {
            // The test runner keeps what is printed; the count of skips reads this line.
            let line = b"\nSKIPPED: package: no dpkg-deb reads it\n";
            std::io::Write::write_all(&mut std::io::stdout(), line).expect("open");
            return;
        };
        assert!(fields.contains("Depends: libc6 (>= 2.34)\nRecommends: systemd"), "{fields}");
        assert!(fields.contains("Installed-Size: 1\n"), "{fields}");
        let line = |path: &str| contents.lines().find(|line| line.ends_with(path));
        let program = line(" ./usr/bin/program").unwrap_or_default();
        assert!(program.starts_with("-rwxr-xr-x root/root "), "{contents}");
        assert!(line(" ./etc/program/").is_some(), "{contents}");
    }
}
