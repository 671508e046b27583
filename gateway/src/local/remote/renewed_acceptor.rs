//! The TLS acceptor of trainers on other hosts, with the certificates of each moment.

use crate::lock::lock_ignoring_poison;
use crate::wan::connect::tls::{Credentials, TrustAnchors};
use std::io;
use std::sync::{Arc, Mutex};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

/// The accepting side of TLS, with the certificates of each moment.
pub(super) struct RenewedAcceptor {
    pub(super) credentials: watch::Receiver<Arc<Credentials>>,
    pub(super) trainers: Option<TrustAnchors>,
    /// The credentials of the last connection, and the settings that follow from them.
    pub(super) settings: Mutex<Option<(Arc<Credentials>, TlsAcceptor)>>,
}

impl RenewedAcceptor {
    /// Returns the accepting side of TLS with the certificates of this moment.
    pub(super) fn current_acceptor(&self) -> io::Result<TlsAcceptor> {
        let now = Arc::clone(&self.credentials.borrow());
        let mut settings = lock_ignoring_poison(&self.settings);
        if let Some((_, acceptor)) = settings.as_ref().filter(|(of, _)| Arc::ptr_eq(of, &now)) {
            return Ok(acceptor.clone());
        }
        let config =
            now.attach_acceptor_config(self.trainers.as_ref()).map_err(io::Error::other)?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        *settings = Some((now, acceptor.clone()));
        Ok(acceptor)
    }
}
