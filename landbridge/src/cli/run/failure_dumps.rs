//! Dumps that a gateway writes by itself when a collective fails, for `landbridge explain` afterwards.
//!
//! A task beside the status server waits for failures and asks the engine for the dump. A thread of its own
//! writes the file, so that a slow or full disk delays nobody. Dumps are at least [`DUMP_INTERVAL`] apart;
//! the queue between both has one dump.

use crate::cli::output::logging::LOG_TARGET;
use crate::explain::dump::Dump;
use gateway::config::GatewayConfig;
use gateway::dump_folder::{DUMP_INTERVAL, DumpFolder};
use gateway::host::{Host, RealHost};
use gateway::limits::thread_limits::spawn_thread_within_limits;
use gateway::observe::http_server::AnswerSources;
use gateway::observe::versioned::Versioned;
use gateway::warn_if_due;
use gateway::warnings::{WarningCause, Warnings};
use hier_collectives::topology::Fabric;
use std::convert::Infallible;
use std::future;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use tracing::info;

/// Writes a dump into the gateway's folder of dumps when a collective fails. Does nothing where the region
/// file names no folder.
pub(super) async fn write_failure_dumps(
    config: &GatewayConfig,
    fabric: Arc<Fabric>,
    sources: AnswerSources,
) -> Infallible {
    let Some(folder) = config.dumps.clone() else { return future::pending().await };
    let (dumps, written) = mpsc::sync_channel::<Dump>(1);
    let (writer, warnings) = (config.name.clone(), sources.metrics.warnings.clone());
    let folder = DumpFolder { folder, writer };
    let body = move || write_dumps_of_failures(&written, &folder, &warnings);
    if let Err(error) = spawn_thread_within_limits("dumps", body) {
        tracing::warn!(target: LOG_TARGET, "failures are not dumped: {error}");
        return future::pending().await;
    }
    loop {
        sources.metrics.failures.wait_for_failure().await;
        if let Ok(report) = sources.request_dump().await {
            // A disk that has not taken the last dump takes no other.
            let _ = dumps.try_send(Dump::of_gateway(&fabric, config.id, report));
        }
        tokio::time::sleep(DUMP_INTERVAL).await;
    }
}

/// Writes dumps as they come, until nobody sends any more.
fn write_dumps_of_failures(dumps: &Receiver<Dump>, folder: &DumpFolder, warnings: &Warnings) {
    while let Ok(dump) = dumps.recv() {
        let text = Versioned::new(&dump).to_json() + "\n";
        match folder.write(&text, dump.taken_unix_seconds as u64) {
            Ok(path) => info!(
                target: LOG_TARGET,
                "a collective failed: `landbridge explain {}` names the party at fault",
                path.display()
            ),
            Err(error) => warn_if_due!(
                warnings.is_due(WarningCause::Limit, "dumps", RealHost.now()),
                target: LOG_TARGET,
                "a collective failed, and its dump cannot be written into {}: {error}",
                folder.folder.display()
            ),
        }
    }
}
