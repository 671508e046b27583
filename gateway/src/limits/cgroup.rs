//! The cgroups of this process, of versions 1 and 2, and the numbers in their files.

use super::limit_text::read_limit_text;
use std::path::{Path, PathBuf};

/// The versions of cgroups, whose files have other names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CgroupVersion {
    /// A hierarchy for each controller.
    V1,
    /// One hierarchy for all controllers.
    V2,
}

/// A cgroup of this process, or one around it.
#[derive(Debug)]
pub(super) struct Cgroup {
    /// The version of its files.
    pub version: CgroupVersion,
    /// Path from the root of its hierarchy.
    pub path: PathBuf,
    folder: PathBuf,
}

impl Cgroup {
    /// Returns the number in a file of the cgroup; `None` if the file says `max`, or cannot be
    /// read.
    pub fn number(&self, file: &str) -> Option<u64> {
        self.text(file).trim().parse().ok()
    }

    /// Returns the text of a file of the cgroup; empty if it cannot be read.
    pub fn text(&self, file: &str) -> String {
        read_limit_text(&self.folder.join(file))
    }
}

/// Returns the cgroups of this process for a controller such as `memory`, each followed by those
/// around it. Where the system names none, they are the roots of both versions. All files are read
/// below `root`.
pub(super) fn cgroups_of_process(root: &Path, controller: &str) -> Vec<Cgroup> {
    let text = read_limit_text(&root.join("proc/self/cgroup"));
    let mut own: Vec<(CgroupVersion, &str)> =
        text.lines().filter_map(|line| cgroup_of_line(line, controller)).collect();
    if own.is_empty() {
        own = vec![(CgroupVersion::V2, "/"), (CgroupVersion::V1, "/")];
    }
    // Inside a container the path may be one of the host's, which the container does not show. Its
    // own cgroup is then the root of what it shows.
    let mut cgroups = Vec::new();
    for (version, path) in own {
        let top = match version {
            CgroupVersion::V1 => root.join("sys/fs/cgroup").join(controller),
            CgroupVersion::V2 => root.join("sys/fs/cgroup"),
        };
        cgroups.extend(Path::new(path).ancestors().map(|path| Cgroup {
            version,
            path: path.to_owned(),
            folder: top.join(path.strip_prefix("/").unwrap_or(path)),
        }));
    }
    cgroups
}

/// Parses a line of `/proc/self/cgroup`; `None` if its cgroup has not the controller.
fn cgroup_of_line<'a>(line: &'a str, controller: &str) -> Option<(CgroupVersion, &'a str)> {
    let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
    match controllers {
        "" => Some((CgroupVersion::V2, path)),
        _ if controllers.split(',').any(|one| one == controller) => Some((CgroupVersion::V1, path)),
        _ => None,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Writes files below a folder that stands for the root of a system, for tests.
    pub fn write_cgroup_files(root: &Path, files: &[(&str, String)]) {
        for (name, text) in files {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(path, text).expect("written");
        }
    }

    #[test]
    fn a_cgroup_is_followed_by_those_around_it() {
        let root = tempfile::tempdir().expect("a folder");
        let files = [
            ("proc/self/cgroup", "4:pids,cpu:/a/b\n3:memory:/c\n".to_owned()),
            ("sys/fs/cgroup/pids/a/pids.max", "max\n".to_owned()),
            ("sys/fs/cgroup/pids/a/b/pids.max", "7\n".to_owned()),
        ];
        write_cgroup_files(root.path(), &files);
        let groups = cgroups_of_process(root.path(), "pids");
        let paths: Vec<_> = groups.iter().map(|group| group.path.display().to_string()).collect();
        assert_eq!(paths, ["/a/b", "/a", "/"]);
        assert!(groups.iter().all(|group| group.version == CgroupVersion::V1));
        assert_eq!(groups[0].number("pids.max"), Some(7));
        assert_eq!(groups[1].number("pids.max"), None, "max is no number");
    }
}
