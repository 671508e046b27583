//! The flags that choose a region file and one of its gateways, for all commands that take them.
//!
//! Commands flatten them into their own flags and load the file through them, so that `--config`,
//! the variable and the default path mean the same everywhere.

use crate::cli::output::command_error::CommandError;
use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use gateway::config::{GatewayConfig, RegionFile};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// LANDBRIDGE_CONFIG: the environment variable with the path of the region file, for commands that
/// are given no `--config`.
const CONFIG_VARIABLE: &str = "LANDBRIDGE_CONFIG";

/// The path at which commands look for the region file where neither `--config` nor
/// LANDBRIDGE_CONFIG names one. Packages tell people to put it there. Without a file there the
/// command is refused.
const DEFAULT_REGION_FILE: &str = "/etc/landbridge/region.toml";

/// Flag that names a region file.
#[derive(Debug, Args)]
pub(in crate::cli) struct RegionArgument {
    /// The region file; without it /etc/landbridge/region.toml
    #[arg(long, value_name = "FILE", env = CONFIG_VARIABLE, hide_env_values = true,
          value_parser = OsStringValueParser::new().try_map(parse_region_argument_path))]
    config: Option<PathBuf>,
}

/// Flags that name a region file and a gateway of it.
#[derive(Debug, Args)]
pub(in crate::cli) struct RegionGatewayArguments {
    #[command(flatten)]
    region: RegionArgument,
    /// The gateway, if the file has several
    #[arg(long, value_name = "NAME")]
    gateway: Option<String>,
}

/// Parses the path of a region file. An empty one is no path: a variable of a script may be empty.
fn parse_region_argument_path(text: OsString) -> Result<PathBuf, String> {
    if text.is_empty() {
        return Err(format!("it is empty; name a file, or unset {CONFIG_VARIABLE}"));
    }
    Ok(PathBuf::from(text))
}

impl RegionArgument {
    /// Loads the region file that flag, variable or default name, in this order.
    ///
    /// # Errors
    /// The file has faults, or none is named and there is none at the default path.
    pub(in crate::cli) fn load_region(&self) -> Result<RegionFile, CommandError> {
        self.load_region_or(Path::new(DEFAULT_REGION_FILE))
    }

    /// Loads the region file that the flag or the environment variable gives, or else the one at
    /// `default`.
    fn load_region_or(&self, default: &Path) -> Result<RegionFile, CommandError> {
        if self.config.is_none() && matches!(default.try_exists(), Ok(false)) {
            return Err(CommandError::Usage(format!(
                "no region file is named, and there is no {}: name one by --config FILE or by the \
                 variable {CONFIG_VARIABLE}",
                default.display()
            )));
        }
        Ok(RegionFile::load(self.config.as_deref().unwrap_or(default))?)
    }
}

impl RegionGatewayArguments {
    /// Loads the region file, as [`RegionArgument::load_region`] does.
    ///
    /// # Errors
    /// Those of [`RegionArgument::load_region`].
    pub(in crate::cli) fn load_region(&self) -> Result<RegionFile, CommandError> {
        self.region.load_region()
    }

    /// Returns the gateway that the flag names, or the only one of `region`.
    ///
    /// # Errors
    /// The file has no such gateway, or several and none was named.
    pub(in crate::cli) fn choose<'a>(
        &self,
        region: &'a RegionFile,
    ) -> Result<&'a GatewayConfig, CommandError> {
        Ok(region.gateway(self.gateway.as_deref())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the example's folder of two regions.
    fn example(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/two-region").join(name)
    }

    #[test]
    fn the_default_file_is_read_where_none_is_named() {
        let unnamed = RegionArgument { config: None };
        let region = unnamed.load_region_or(&example("west.toml")).expect("valid");
        assert_eq!(region.path(), example("west.toml"));
        let named = RegionArgument { config: Some(example("east.toml")) };
        let region = named.load_region_or(&example("west.toml")).expect("valid");
        assert_eq!(region.path(), example("east.toml"));
    }

    #[test]
    fn an_empty_path_is_no_region_file() {
        let error = parse_region_argument_path(OsString::new()).expect_err("no path");
        assert_eq!(error, "it is empty; name a file, or unset LANDBRIDGE_CONFIG");
        assert_eq!(parse_region_argument_path("a.toml".into()), Ok(PathBuf::from("a.toml")));
    }

    #[test]
    fn a_missing_default_file_names_flag_and_variable() {
        let unnamed = RegionArgument { config: None };
        let error = unnamed.load_region_or(&example("none.toml")).expect_err("missing").to_string();
        assert!(error.contains("none.toml: name one by --config FILE"), "{error}");
        assert!(error.ends_with("the variable LANDBRIDGE_CONFIG"), "{error}");
    }
}
