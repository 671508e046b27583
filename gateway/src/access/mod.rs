//! The users that a gateway's socket and secret files are for, the judges of both, and readers of files.
//!
//! `landbridge run` and `doctor` call them on the gateway's side, [`crate::client`] and operators
//! on the other. Nothing here knows of connections or requests.

mod account;
mod credential_file;
mod secret_file;
mod socket_access;

pub use account::{
    Account, AccountError, group_account_label, own_user_account, user_account_label,
};
pub use credential_file::read_credential_file;
pub use secret_file::{SecretFile, SecretFileError, check_secret_file, unreadable_secret_advice};
pub use socket_access::{
    SOCKET_PATH_BYTES_MAX, SocketAccessError, TrustedSocketUsers, check_socket_folder,
    check_socket_peer, denied_socket_access, socket_folder,
};
