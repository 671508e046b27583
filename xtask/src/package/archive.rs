//! Writers of tar (ustar), ar and gzip, whose output depends on nothing but their input.

use super::file_tree::{Content, Entry, FileTree};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;

/// 512 bytes: the length of a block of a tar archive. A header takes one block, and contents are
/// padded to whole blocks.
const TAR_BLOCK_BYTES: usize = 512;

/// Bytes 148 to 155 of a tar header, which hold the checksum of the header.
const CHECKSUM_FIELD: std::ops::Range<usize> = 148..156;

/// Returns a tar archive of a tree with `prefix` before each path, and `seconds` since 1970 as the
/// time of each file.
pub fn tar_archive(tree: &FileTree, prefix: &str, seconds: u64) -> Vec<u8> {
    let mut archive = Vec::new();
    for (path, entry) in tree.entries() {
        archive.extend(tar_header(&format!("{prefix}{path}"), entry, seconds));
        if let Content::File(bytes) = &entry.content {
            archive.extend(bytes);
        }
        archive.resize(archive.len().next_multiple_of(TAR_BLOCK_BYTES), 0);
    }
    // Two blocks of zeros are the end.
    archive.resize(archive.len() + 2 * TAR_BLOCK_BYTES, 0);
    archive
}

/// Returns the header of a file, folder or link.
fn tar_header(path: &str, entry: &Entry, seconds: u64) -> [u8; TAR_BLOCK_BYTES] {
    let (kind, bytes, target) = match &entry.content {
        Content::File(bytes) => ("0", bytes.len(), ""),
        Content::Link(target) => ("2", 0, target.as_str()),
        Content::Folder => ("5", 0, ""),
    };
    let path = if kind == "5" { format!("{path}/") } else { path.to_owned() };
    let (prefix, name) = split_archive_path(&path);
    let mut header = [0; TAR_BLOCK_BYTES];
    let mut put =
        |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, &format!("{:07o}", entry.mode));
    put(108, &format!("{:07o}", entry.owner));
    put(116, &format!("{:07o}", entry.owner));
    put(124, &format!("{bytes:011o}"));
    put(136, &format!("{seconds:011o}"));
    // The checksum counts its own field as spaces.
    put(CHECKSUM_FIELD.start, "        ");
    put(156, kind);
    put(157, target);
    put(257, "ustar\u{0}00");
    if entry.owner == 0 {
        put(265, "root");
        put(297, "root");
    }
    put(345, prefix);
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[CHECKSUM_FIELD].copy_from_slice(format!("{sum:06o}\u{0} ").as_bytes());
    header
}

/// Splits a path into the fields of a header: at most 155 bytes, a slash that is left out, and at
/// most 100 bytes. The first field of a path of at most 100 bytes is empty.
fn split_archive_path(path: &str) -> (&str, &str) {
    if path.len() <= 100 {
        return ("", path);
    }
    let fits = |at: &usize| *at <= 155 && path.len() - at - 1 <= 100;
    let slash = path.match_indices('/').map(|(at, _)| at).find(fits);
    let at = slash.expect("paths of packages are short");
    (&path[..at], &path[at + 1..])
}

/// Compresses bytes; the header has neither time nor name.
pub fn gzip_archive(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).expect("memory takes all");
    encoder.finish().expect("memory takes all")
}

/// Returns an ar archive of members in this order, as a Debian package is one. Names have at most
/// 16 bytes.
pub fn ar_archive(members: &[(&str, &[u8])], seconds: u64) -> Vec<u8> {
    let mut archive = b"!<arch>\n".to_vec();
    for (name, content) in members {
        let size = content.len();
        let header = format!("{name:<16}{seconds:<12}{:<6}{:<6}{:<8}{size:<10}`\n", 0, 0, "100644");
        archive.extend(header.as_bytes());
        archive.extend(*content);
        if size % 2 == 1 {
            archive.push(b'\n');
        }
    }
    archive
}

#[cfg(test)]
mod tests {
    use super::super::file_tree::{EXECUTABLE_MODE, READABLE_MODE};
    use super::*;
    use std::process::Command;

    /// Returns the output of a program over a file with `bytes`, whose name ends with `extension`.
    fn shown_by(words: &[&str], bytes: &[u8], extension: &str) -> String {
        let name = format!("xtask-archive-{}.{extension}", std::process::id());
        let file = std::env::temp_dir().join(name);
        std::fs::write(&file, bytes).expect("written");
        let output = Command::new(words[0]).args(&words[1..]).arg(&file).output().expect("runs");
        std::fs::remove_file(&file).expect("ours");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    #[test]
    fn tar_lists_an_archive_with_modes_and_owners() {
        let long = format!("usr/share/{}/{}", "d".repeat(90), "f".repeat(90));
        let mut tree = FileTree::default();
        tree.add_file("usr/bin/program", EXECUTABLE_MODE, "1234567");
        tree.add_file(&long, READABLE_MODE, vec![b'x'; 1000]);
        tree.add_folder("run/own", 0o755, 10001);
        tree.add_link("usr/lib/name", "target");
        let words = ["tar", "--list", "--verbose", "--numeric-owner", "--utc", "--file"];
        let listed = shown_by(&words, &tar_archive(&tree, "./", 86400), "tar");
        let line = |path: &str| listed.lines().find(|line| line.ends_with(path)).expect("listed");
        assert!(line("./usr/bin/program").starts_with("-rwxr-xr-x 0/0"), "{listed}");
        assert!(line("./usr/bin/program").contains(" 7 1970-01-02 00:00 "), "{listed}");
        assert!(line(&format!("./{long}")).contains(" 1000 "), "{listed}");
        assert!(line("./run/own/").starts_with("drwxr-xr-x 10001/10001"), "{listed}");
        assert!(line(" ./usr/lib/name -> target").starts_with("lrwxrwxrwx 0/0"), "{listed}");
        assert_eq!(listed.lines().count(), 10, "{listed}");
    }

    #[test]
    fn the_same_files_give_the_same_bytes() {
        let files = [("b/2", "two"), ("a", "one"), ("b/1", "three")];
        let add = |tree: &mut FileTree, (path, text): (&str, &str)| {
            tree.add_file(path, READABLE_MODE, text);
        };
        let (mut forward, mut backward) = (FileTree::default(), FileTree::default());
        files.into_iter().for_each(|file| add(&mut forward, file));
        files.into_iter().rev().for_each(|file| add(&mut backward, file));
        let [one, two] = [&forward, &backward].map(|tree| gzip_archive(&tar_archive(tree, "", 1)));
        assert_eq!(one, two);
        assert_ne!(one, gzip_archive(&tar_archive(&forward, "", 2)));
    }

    #[test]
    fn members_of_odd_length_are_padded() {
        let archive = ar_archive(&[("debian-binary", b"2.0\n"), ("odd", b"1"), ("last", b"22")], 5);
        let text = String::from_utf8(archive).expect("text");
        assert_eq!(text.len(), 8 + 3 * 60 + 4 + 2 + 2);
        assert!(
            text.starts_with(
                "!<arch>\ndebian-binary   5           0     0     100644  4         `\n"
            )
        );
        assert!(text.ends_with("`\n22") && text.contains("`\n1\nlast"), "{text}");
    }
}
