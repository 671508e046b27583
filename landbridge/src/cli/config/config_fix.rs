//! `landbridge check --fix`: replaces the values of earlier versions in config files.
//!
//! The former text is kept beside each file, and whatever is not replaced stays as it was.

use crate::cli::output::command_error::CommandError;
use gateway::config::{ConfigFile, RewrittenConfigFile};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

/// A file that has values of earlier versions, or had them.
#[derive(Serialize)]
pub(super) struct FixedConfigFile {
    #[serde(serialize_with = "gateway::observe::versioned::serialize_versioned_path")]
    file: PathBuf,
    /// The path of the former text; `None` where nothing was written.
    backup: Option<String>,
    changes: Vec<FixedConfigValue>,
    /// The changed lines, in the unified format of `diff`.
    #[serde(skip)]
    diff: String,
}

/// A value of an earlier version, and the one in its place.
#[derive(Serialize)]
struct FixedConfigValue {
    line: Option<usize>,
    key: String,
    before: String,
    after: String,
}

/// Replaces the values of earlier versions in files, and in the fabric files that they name. With
/// `is_dry` nothing is written.
///
/// # Errors
/// A file cannot be written, or the place of its former text is taken.
pub(super) fn fix_config_files(
    files: &[PathBuf],
    is_dry: bool,
) -> Result<Vec<FixedConfigFile>, CommandError> {
    let mut fixed: BTreeMap<PathBuf, FixedConfigFile> = BTreeMap::new();
    for file in files {
        // The values of a region file are judged once its fabric file has no fault.
        while let Some(path) = next_file_to_fix(file, &fixed) {
            let Some(rewritten) = RewrittenConfigFile::load(&path)? else { break };
            let replaced = (!is_dry).then(|| replace_config_file(&path, &rewritten)).transpose();
            let backup = replaced.inspect_err(|_| {
                // Those before are rewritten, and no report will say so.
                let told = fixed.values().map(FixedConfigFile::render);
                told.for_each(|text| stdio::print_stderr_message(text.trim_end()));
            })?;
            let backup = backup.map(|backup| backup.display().to_string());
            let one = describe_fixed_config_file(&path, &rewritten, backup);
            fixed.insert(path, one);
        }
    }
    Ok(fixed.into_values().collect())
}

/// Returns a file with values of earlier versions that is not yet among `fixed`: `file`, or the fabric
/// file that it names.
fn next_file_to_fix(file: &Path, fixed: &BTreeMap<PathBuf, FixedConfigFile>) -> Option<PathBuf> {
    let faults = ConfigFile::load(file).err()?;
    let former = faults.into_iter().filter(|fault| fault.replacement.is_some());
    former.map(|fault| fault.file).find(|path| !fixed.contains_key(path))
}

/// Lists the changes of a file, as JSON and as a difference of lines.
fn describe_fixed_config_file(
    path: &Path,
    rewritten: &RewrittenConfigFile,
    backup: Option<String>,
) -> FixedConfigFile {
    let changes = rewritten.mended.iter().filter_map(|fault| {
        let replacement = fault.replacement.as_ref()?;
        Some(FixedConfigValue {
            line: fault.line,
            key: fault.key.clone(),
            before: rewritten.before[replacement.span()].to_owned(),
            after: replacement.value().to_owned(),
        })
    });
    let diff = diff_of_fixed_config_file(path, rewritten);
    FixedConfigFile { file: path.to_owned(), backup, changes: changes.collect(), diff }
}

/// Returns the changed lines of a file in the unified format of `diff`, without lines around them.
fn diff_of_fixed_config_file(path: &Path, rewritten: &RewrittenConfigFile) -> String {
    let name = path.display();
    let mut diff = format!("--- {name}\n+++ {name}\n");
    let before = &rewritten.before;
    let replacements = rewritten.mended.iter().filter_map(|fault| fault.replacement.as_ref());
    let mut replacements: Vec<_> = replacements.collect();
    replacements.sort_by_key(|replacement| replacement.span().start);
    let mut hunks: Vec<Range<usize>> = Vec::new();
    for span in replacements.iter().map(|replacement| replacement.span()) {
        let start = before[..span.start].rfind('\n').map_or(0, |at| at + 1);
        let end = before[span.end..].find('\n').map_or(before.len(), |at| span.end + at);
        match hunks.last_mut().filter(|hunk| start < hunk.end) {
            Some(hunk) => hunk.end = hunk.end.max(end),
            None => hunks.push(start..end),
        }
    }
    let mut added: isize = 0;
    for hunk in hunks {
        let old = &before[hunk.clone()];
        let mut new = old.to_owned();
        let inside = replacements.iter().filter(|one| hunk.contains(&one.span().start));
        for replacement in inside.rev() {
            let span = replacement.span();
            let place = span.start - hunk.start..span.end - hunk.start;
            new.replace_range(place, replacement.value());
        }
        let first = 1 + before[..hunk.start].matches('\n').count();
        let (olds, news) = (old.lines().count(), new.lines().count());
        diff += &format!("@@ -{first},{olds} +{},{news} @@\n", first.saturating_add_signed(added));
        old.lines().for_each(|line| diff += &format!("-{line}\n"));
        new.lines().for_each(|line| diff += &format!("+{line}\n"));
        added += news.cast_signed() - olds.cast_signed();
    }
    diff
}

impl FixedConfigFile {
    /// Returns the changed lines, and where the former text is.
    pub(super) fn render(&self) -> String {
        let outcome = match &self.backup {
            Some(backup) => format!("rewritten; its former text is in {backup}"),
            None => "not written (--dry-run)".to_owned(),
        };
        format!("{}{}: {outcome}\n\n", self.diff, self.file.display())
    }
}

/// Writes the new text of a file in place of the former one, which is kept under the same name with
/// `.bak` behind it. Owner and mode stay. Returns the path of the former text.
fn replace_config_file(
    path: &Path,
    rewritten: &RewrittenConfigFile,
) -> Result<PathBuf, CommandError> {
    let at_fault = |path: &Path, source| CommandError::Path { path: path.to_owned(), source };
    // A link to the file stays one.
    let file = fs::canonicalize(path).map_err(|source| at_fault(path, source))?;
    let mut backup = file.clone().into_os_string();
    backup.push(".bak");
    let backup = PathBuf::from(backup);
    let found = fs::metadata(&file).map_err(|source| at_fault(&file, source))?;
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(found.mode() & 0o777);
    let mut kept = options.open(&backup).map_err(|source| match source.kind() {
        ErrorKind::AlreadyExists => CommandError::Usage(format!(
            "{}: is there already, and would be lost; move it away, and {} is rewritten",
            backup.display(),
            path.display()
        )),
        _ => at_fault(&backup, source),
    })?;
    let mut replace = || -> io::Result<()> {
        kept.write_all(rewritten.before.as_bytes())?;
        kept.sync_all()?;
        let mut draft = tempfile::NamedTempFile::new_in(file.parent().unwrap_or(Path::new("/")))?;
        draft.write_all(rewritten.after.as_bytes())?;
        fchown(draft.as_file(), Some(found.uid()), Some(found.gid()))?;
        draft.as_file().set_permissions(found.permissions())?;
        draft.as_file().sync_all()?;
        draft.persist(&file).map(drop).map_err(|error| error.error)
    };
    replace().map_err(|source| {
        // The file is as it was, so that nobody needs a second one.
        let _ = fs::remove_file(&backup);
        at_fault(path, source)
    })?;
    Ok(backup)
}
