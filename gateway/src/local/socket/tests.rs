//! Sockets in a temporary folder, with other programs in the way.

use super::gateway_socket::GatewaySocket;
use super::socket_lock::socket_lock_path;
use super::{
    GatewaySocketMode, GatewaySocketSpec, ListenError, UnixSocketListener,
    check_gateway_socket_path,
};
use crate::access::SocketAccessError;
use crate::local::trainer_listener::TrainerListener;
use crate::warnings::Warnings;
use std::fs::Permissions;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier};
use std::time::Duration;
use tempfile::TempDir;

/// A folder, and the path of a socket in it.
fn place() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("east.sock");
    (folder, path)
}

/// The settings of a socket for this user alone.
fn spec(path: &Path) -> GatewaySocketSpec {
    GatewaySocketSpec::new(path.to_owned(), None, None)
}

/// Opens the socket within a runtime, which is then left.
fn open(path: &Path) -> Result<GatewaySocket, ListenError> {
    GatewaySocket::open(spec(path))
}

/// Leaves socket and lock file as a gateway does that is killed.
fn leave_behind(path: &Path) {
    let socket = open(path).expect("free");
    let (kept, lock) = (path.with_extension("kept"), path.with_extension("lock-kept"));
    std::fs::hard_link(path, &kept).expect("linked");
    std::fs::hard_link(socket_lock_path(path), &lock).expect("linked");
    drop(socket);
    std::fs::rename(kept, path).expect("as before");
    std::fs::rename(lock, socket_lock_path(path)).expect("as before");
    UnixStream::connect(path).expect_err("nothing listens");
}

/// Asserts that the path is refused, and that its file is the same as before.
fn assert_left_alone(path: &Path, words: &str) {
    let before = std::fs::symlink_metadata(path).expect("there").ino();
    let error = open(path).err().expect("taken").to_string();
    assert!(error.contains(words), "{error}");
    assert_eq!(std::fs::symlink_metadata(path).expect("there").ino(), before, "{error}");
}

#[tokio::test]
async fn a_socket_is_for_its_user_alone_and_vanishes() {
    let (folder, _) = place();
    let path = folder.path().join("below/run/east.sock");
    let socket = open(&path).expect("free");
    UnixStream::connect(&path).expect("it listens");
    let mode = |path: &Path| std::fs::symlink_metadata(path).expect("there").mode() & 0o777;
    assert_eq!((mode(&path), mode(path.parent().expect("a folder"))), (0o600, 0o700));
    drop(socket);
    let left = std::fs::read_dir(path.parent().expect("a folder")).expect("there").count();
    assert_eq!(left, 0, "neither socket nor lock file");
}

#[tokio::test]
async fn a_socket_of_a_group_admits_its_members() {
    let (folder, path) = place();
    let group = std::fs::metadata(folder.path()).expect("there").gid();
    let spec = GatewaySocketSpec::new(path.clone(), Some(group), None);
    let _socket = GatewaySocket::open(spec).expect("free");
    let found = std::fs::symlink_metadata(&path).expect("there");
    assert_eq!((found.mode() & 0o777, found.gid()), (0o660, group));
}

#[tokio::test]
async fn a_socket_of_mode_0666_admits_every_user() {
    let (folder, _) = place();
    let path = folder.path().join("run/east.sock");
    let spec = GatewaySocketSpec::new(path.clone(), None, Some(GatewaySocketMode::All));
    let _socket = GatewaySocket::open(spec).expect("free");
    let mode = |path: &Path| std::fs::symlink_metadata(path).expect("there").mode() & 0o777;
    assert_eq!((mode(&path), mode(path.parent().expect("a folder"))), (0o666, 0o755));
}

#[tokio::test]
async fn a_folder_that_lets_no_other_user_in_is_refused() {
    let (folder, path) = place();
    for (mode, shut, open) in
        [(GatewaySocketMode::Group, 0o700, 0o710), (GatewaySocketMode::All, 0o750, 0o711)]
    {
        let spec = GatewaySocketSpec::new(path.clone(), None, Some(mode));
        let set = |mode| std::fs::set_permissions(folder.path(), Permissions::from_mode(mode));
        set(shut).expect("ours");
        let error = GatewaySocket::open(spec.clone()).err().expect("nobody could connect");
        assert!(error.to_string().contains(&format!("has mode {shut:o}")), "{error}");
        set(open).expect("ours");
        drop(GatewaySocket::open(spec).expect("others may enter"));
    }
}

#[tokio::test]
async fn the_socket_of_a_running_gateway_is_refused() {
    let (_folder, path) = place();
    let _first = open(&path).expect("free");
    assert_left_alone(&path, &format!("another gateway (process {})", std::process::id()));
    // Its lock file was deleted, so only the listener tells.
    std::fs::remove_file(socket_lock_path(&path)).expect("there");
    assert_left_alone(&path, "another program listens there");
}

#[tokio::test]
async fn files_of_other_programs_are_left_alone() {
    let (_folder, path) = place();
    let listener = UnixListener::bind(&path).expect("free");
    assert_left_alone(&path, "another program listens there");
    drop(listener);
    assert_left_alone(&path, "no lock file says that a gateway left it");
    std::fs::remove_file(&path).expect("there");
    let datagrams = UnixDatagram::bind(&path).expect("free");
    assert_left_alone(&path, "a socket of another program is there");
    drop(datagrams);
    std::fs::remove_file(&path).expect("there");
    std::fs::write(&path, "text").expect("written");
    assert_left_alone(&path, "no socket");
}

#[tokio::test]
async fn a_socket_that_a_gateway_left_is_replaced() {
    let (_folder, path) = place();
    leave_behind(&path);
    let socket = open(&path).expect("stale");
    UnixStream::connect(&path).expect("it listens");
    drop(socket);
    // The lock file names another file than the one that is there now.
    leave_behind(&path);
    std::fs::rename(&path, path.with_extension("elsewhere")).expect("there");
    drop(UnixListener::bind(&path).expect("free"));
    assert_left_alone(&path, "no lock file says that a gateway left it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn of_many_starts_at_once_one_succeeds() {
    for _ in 0..20 {
        let (_folder, path) = place();
        leave_behind(&path);
        let starts = 8;
        let barrier = Arc::new(Barrier::new(starts));
        let attempts: Vec<_> = (0..starts)
            .map(|_| {
                let (path, barrier) = (path.clone(), Arc::clone(&barrier));
                tokio::task::spawn_blocking(move || {
                    barrier.wait();
                    open(&path)
                })
            })
            .collect();
        let mut running = Vec::new();
        for attempt in attempts {
            match attempt.await.expect("no panic") {
                Ok(socket) => running.push(socket),
                Err(error) => assert!(matches!(error, ListenError::Held { .. }), "{error}"),
            }
        }
        assert_eq!(running.len(), 1);
        UnixStream::connect(&path).expect("the one that runs has its socket");
    }
}

#[tokio::test]
async fn only_its_own_socket_file_is_removed() {
    let (_folder, path) = place();
    let socket = open(&path).expect("free");
    std::fs::remove_file(&path).expect("there");
    let _other = UnixListener::bind(&path).expect("free");
    drop(socket);
    assert!(std::fs::symlink_metadata(&path).expect("there").file_type().is_socket());
}

#[tokio::test]
async fn a_folder_that_all_may_write_is_refused() {
    let (folder, path) = place();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).expect("ours");
    let error = open(&path).err().expect("anybody could replace it");
    let is_open = matches!(error, ListenError::Access(SocketAccessError::OpenFolder { .. }));
    assert!(is_open && error.to_string().contains("chmod go-w"), "{error}");
    assert!(!path.exists());
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o1777)).expect("ours");
    open(&path).expect("sticky, like /tmp");
}

/// Connects to a path as soon as there is a listener.
async fn connect_soon(path: &Path) -> tokio::net::UnixStream {
    loop {
        match tokio::net::UnixStream::connect(path).await {
            Ok(stream) => return stream,
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_deleted_socket_file_is_made_again() {
    let (folder, _) = place();
    let path = folder.path().join("run/east.sock");
    let listener = UnixSocketListener::open(spec(&path), Warnings::default()).expect("free");
    let (accepted, _) = tokio::join!(listener.accept(), connect_soon(&path));
    accepted.expect("a connection");
    // As programs do that clean folders: the socket alone, or all.
    std::fs::remove_file(&path).expect("there");
    let (accepted, _) = tokio::join!(listener.accept(), connect_soon(&path));
    accepted.expect("a connection");
    std::fs::remove_dir_all(folder.path().join("run")).expect("there");
    let (accepted, _) = tokio::join!(listener.accept(), connect_soon(&path));
    accepted.expect("a connection");
    assert!(socket_lock_path(&path).exists());
    assert_eq!(*listener.problem().borrow(), None);
}

#[tokio::test(start_paused = true)]
async fn a_socket_that_another_replaced_is_a_problem() {
    let (_folder, path) = place();
    let listener = UnixSocketListener::open(spec(&path), Warnings::default()).expect("free");
    std::fs::remove_file(&path).expect("there");
    let other = UnixListener::bind(&path).expect("free");
    let mut problem = listener.problem();
    let told = async { problem.wait_for(Option::is_some).await.expect("told").clone() };
    let told = tokio::select! {
        told = told => told.expect("some"),
        _ = listener.accept() => panic!("nobody connects"),
    };
    assert!(told.contains("trainers cannot attach") && told.contains("another program"), "{told}");
    drop(other);
    std::fs::remove_file(&path).expect("there");
    let mended = async { problem.wait_for(Option::is_none).await.expect("told").clone() };
    tokio::select! {
        mended = mended => assert_eq!(mended, None),
        _ = listener.accept() => panic!("nobody connects"),
    }
    UnixStream::connect(&path).expect("made again");
}

#[tokio::test]
async fn a_socket_without_its_lock_file_vanishes_with_its_gateway() {
    let (_folder, path) = place();
    let socket = open(&path).expect("free");
    std::fs::remove_file(socket_lock_path(&path)).expect("there");
    drop(socket);
    assert!(!path.exists(), "only its own gateway listened there");
    open(&path).expect("free again");
}

#[tokio::test]
async fn a_path_is_judged_as_a_start_would() {
    let (folder, path) = place();
    check_gateway_socket_path(&path).expect("free");
    assert!(!socket_lock_path(&path).exists(), "nothing is made");
    let socket = open(&path).expect("free");
    let held = check_gateway_socket_path(&path).expect_err("in use");
    assert!(matches!(held, ListenError::Held { .. }), "{held}");
    drop(socket);
    leave_behind(&path);
    check_gateway_socket_path(&path).expect("a gateway left it");
    assert!(path.exists(), "nothing is removed");
    std::fs::remove_file(socket_lock_path(&path)).expect("there");
    let obstacles = [
        ("east.sock", "socket"),
        ("east.sock", "file"),
        ("east.sock", "folder"),
        ("east.sock.lock", "folder"),
        ("east.sock.lock", "link"),
    ];
    for (name, kind) in obstacles {
        let place = folder.path().join(format!("{kind} at {name}"));
        std::fs::create_dir(&place).expect("new");
        let (path, at) = (place.join("east.sock"), place.join(name));
        match kind {
            "socket" => drop(UnixListener::bind(&at).expect("free")),
            "file" => std::fs::write(&at, "").expect("free"),
            "folder" => std::fs::create_dir(&at).expect("free"),
            _ => std::os::unix::fs::symlink("/dev/null", &at).expect("free"),
        }
        let judged = check_gateway_socket_path(&path).expect_err("taken").to_string();
        assert_eq!(open(&path).err().expect("taken").to_string(), judged);
        assert!(judged.starts_with("cannot listen at"), "{judged}");
    }
}

#[tokio::test]
async fn a_folder_that_is_none_is_named_with_its_remedy() {
    let (folder, _) = place();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("file"), "notes").expect("new");
    std::os::unix::fs::symlink(at("loop"), at("loop")).expect("new");
    std::os::unix::fs::symlink(at("nowhere"), at("dangling")).expect("new");
    for (place, remedy) in [
        ("file", "remove the file or link that is in its place"),
        ("loop", "remove the link that leads to itself"),
        ("dangling", "remove the file or link that is in its place"),
        ("file/below", "remove the file or link that is in its place"),
        ("loop/below", "remove the link that leads to itself"),
    ] {
        let path = at(place).join("east.sock");
        let error = open(&path).err().expect("no folder").to_string();
        let named = at(place.split('/').next().expect("a name"));
        assert!(error.starts_with(&named.display().to_string()), "{place}: {error}");
        assert!(error.contains(remedy) && !error.contains("lock"), "{place}: {error}");
        let judged = check_gateway_socket_path(&path).expect_err("no folder").to_string();
        assert!(judged.contains(remedy) && !judged.contains("lock"), "{place}: {judged}");
    }
    assert_eq!(std::fs::read_to_string(at("file")).expect("as before"), "notes");
}

#[tokio::test]
async fn a_lock_file_of_another_program_stays() {
    let (_folder, path) = place();
    let lock = socket_lock_path(&path);
    for text in ["hello", "12345\n", "\0notes"] {
        std::fs::write(&lock, text).expect("new");
        let error = open(&path).err().expect("taken").to_string();
        assert!(error.contains("is a file of another program: remove it"), "{error}");
        assert_eq!(check_gateway_socket_path(&path).expect_err("taken").to_string(), error);
        assert_eq!(std::fs::read_to_string(&lock).expect("as before"), text);
    }
    for text in ["", "\0\0\0\0", "pid 7\ninode 8\n"] {
        std::fs::write(&lock, text).expect("new");
        drop(open(&path).unwrap_or_else(|error| panic!("{text:?}: {error}")));
    }
}
