//! The folders and programs of the workspace that this program was built in.

use std::path::{Path, PathBuf};

/// Folders and programs that stages use.
pub struct Workspace {
    /// The root folder of the project.
    pub root: PathBuf,
    /// Program `landbridge` in the profile of the tests.
    pub landbridge: PathBuf,
    /// True if missing system packages may be installed.
    pub may_install: bool,
}

impl Workspace {
    /// Returns the workspace that this program was built in; `may_install` allows stages to install
    /// missing programs.
    pub fn current(may_install: bool) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a member's folder");
        let ours = std::env::current_exe().expect("the system knows who runs");
        let landbridge =
            ours.with_file_name("landbridge").with_extension(std::env::consts::EXE_EXTENSION);
        Self { root: root.to_owned(), landbridge, may_install }
    }

    /// Returns the file for the output of a stage that runs beside others.
    pub fn stage_output(&self, stage: &str) -> PathBuf {
        self.target_folder().join("xtask").join(format!("{}.log", stage.replace(' ', "-")))
    }

    /// Returns the folder of build outputs, above the folders of the profiles.
    pub fn target_folder(&self) -> &Path {
        self.landbridge.ancestors().nth(2).expect("a profile's folder")
    }
}

/// Returns the folder of build outputs of the workspace.
pub fn workspace_target_folder() -> PathBuf {
    Workspace::current(false).target_folder().to_owned()
}
