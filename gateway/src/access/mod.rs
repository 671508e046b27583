//! The users that a gateway's socket and secret files are for, the judges of both, and readers of files.
//!
//! `landbridge run` and `doctor` call them on the gateway's side, [`crate::client`] and operators
//! on the other. Nothing here knows of connections or requests.

mod account;
mod credential_bytes;
mod secret_file;
mod trusted_socket;

pub use account::{
    Account, AccountError, group_account_label, own_user_account, user_account_label,
};
pub use credential_bytes::read_credential_bytes;
pub use secret_file::{
    SecretFile, SecretFileError, check_secret_file, unreadable_secret_file_advice,
};
pub use trusted_socket::{
    SOCKET_PATH_BYTES_MAX, SocketAccessError, TrustedSocketUsers, check_trusted_socket_folder,
    check_trusted_socket_peer, denied_trusted_socket, trusted_socket_folder,
};
