//! The TLS settings for trainers on other hosts, with the certificates of each moment.

use crate::lock::lock_ignoring_poison;
use crate::wan::connect::tls::{Credentials, TrustAnchors};
use rustls::ServerConfig;
use std::io;
use std::sync::{Arc, Mutex};
use tokio::sync::watch;

/// The settings of the accepting side of TLS, with the certificates of each moment.
pub(super) struct RenewedSettings {
    pub(super) credentials: watch::Receiver<Arc<Credentials>>,
    pub(super) trainers: Option<TrustAnchors>,
    /// The credentials of the last connection, and the settings that follow from them.
    pub(super) settings: Mutex<Option<(Arc<Credentials>, Arc<ServerConfig>)>>,
}

impl RenewedSettings {
    /// Returns the settings of the accepting side with the certificates of this moment.
    pub(super) fn current_settings(&self) -> io::Result<Arc<ServerConfig>> {
        let now = Arc::clone(&self.credentials.borrow());
        let mut settings = lock_ignoring_poison(&self.settings);
        if let Some((_, config)) = settings.as_ref().filter(|(of, _)| Arc::ptr_eq(of, &now)) {
            return Ok(Arc::clone(config));
        }
        let config =
            now.attach_acceptor_config(self.trainers.as_ref()).map_err(io::Error::other)?;
        let config = Arc::new(config);
        *settings = Some((now, Arc::clone(&config)));
        Ok(config)
    }
}
