//! Files of others in each place where `run` makes one: the folder of its socket, the lock file,
//! the socket under its temporary name, and the socket. They are left as they are.

use super::deployment::{BINARY, Deployment, UP_LINE};
use super::skipping::skip;
use super::{LAYOUT, ONE_AT_A_TIME};
use gateway::access::own_user_account;
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{DirBuilder, Permissions};
use std::io::Read;
use std::os::unix::fs::{
    DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, chown, lchown, symlink,
};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// The number of a user without rights.
const STRANGER: u32 = 65_534;
/// 60 s: a gateway that neither is up nor has ended by then hangs.
const HANGS_AFTER: Duration = Duration::from_secs(60);

/// A place where `run` makes a file, and its name in the folder of the deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Folder,
    Lock,
    Temporary,
    Socket,
}

impl Place {
    const ALL: [Self; 4] = [Self::Folder, Self::Lock, Self::Temporary, Self::Socket];

    /// Returns the path of the place.
    fn path(self, deployment: &Deployment) -> PathBuf {
        deployment.path(match self {
            Self::Folder => "run",
            Self::Lock => "run/east.sock.lock",
            Self::Temporary => "run/.east.sock.new",
            Self::Socket => "run/east.sock",
        })
    }
}

/// A file that lies where `run` makes its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Thing {
    /// A file with a text.
    File,
    Folder,
    /// A link to a path at which nothing is.
    DeadLink,
    /// A link to a file with a text.
    Link,
    Fifo,
    /// The socket of a program that listens.
    Socket,
    /// The socket of a program that has ended.
    DeadSocket,
}

impl Thing {
    const ALL: [Self; 7] = [
        Self::File,
        Self::Folder,
        Self::DeadLink,
        Self::Link,
        Self::Fifo,
        Self::Socket,
        Self::DeadSocket,
    ];

    /// Makes the thing at a path. Returns the listening socket, if it is one.
    fn make(self, path: &Path, target: &Path) -> Option<UnixListener> {
        match self {
            Self::File => std::fs::write(path, TEXT).expect("written"),
            Self::Folder => std::fs::create_dir(path).expect("made"),
            Self::DeadLink => symlink("nowhere", path).expect("made"),
            Self::Link => {
                std::fs::write(target, TEXT).expect("written");
                symlink(target, path).expect("made");
            }
            Self::Fifo => {
                mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR).expect("made");
            }
            Self::Socket => return Some(UnixListener::bind(path).expect("bound")),
            Self::DeadSocket => drop(UnixListener::bind(path).expect("bound")),
        }
        None
    }
}

/// Content of files that must stay.
const TEXT: &str = "of another program\n";

/// Identity and content of a path, to compare them.
fn look(path: &Path, target: &Path) -> (u64, u64, u32, Option<String>) {
    let found = std::fs::symlink_metadata(path).expect("still there");
    let is_file = found.is_file() || (found.is_symlink() && target.exists());
    let text = is_file.then(|| std::fs::read_to_string(path).expect("readable"));
    (found.dev(), found.ino(), found.uid(), text)
}

/// Writes the files of a deployment whose socket is in a folder of its own.
fn deployment_with_folder() -> Deployment {
    let deployment = Deployment::new(&LAYOUT);
    let file = deployment.path("east.toml");
    let text = std::fs::read_to_string(&file).expect("readable");
    assert!(text.contains("\"east.sock\""), "{text}");
    std::fs::write(&file, text.replace("\"east.sock\"", "\"run/east.sock\"")).expect("written");
    deployment
}

/// The end of a start: up, or refused with a code and a text.
#[derive(Debug)]
enum Started {
    Up,
    Refused(Option<i32>, String),
}

/// Starts east's gateway, and ends it by SIGTERM if it comes up.
fn start_and_stop(deployment: &Deployment) -> Started {
    let mut process = Command::new(BINARY)
        .args(["run", "--config"])
        .arg(deployment.path("east.toml"))
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut stderr = process.stderr.take().expect("piped");
    let (text, pid, begin) =
        (std::sync::Mutex::default(), Pid::from_child(&process), Instant::now());
    std::thread::scope(|scope| {
        let text: &std::sync::Mutex<String> = &text;
        let reader = scope.spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = stderr.read(&mut bytes) {
                let more = String::from_utf8_lossy(&bytes[..read]).into_owned();
                text.lock().expect("no panic inside").push_str(&more);
            }
        });
        let is_up = || text.lock().expect("no panic inside").contains(UP_LINE);
        while !is_up() && process.try_wait().expect("ours").is_none() {
            if begin.elapsed() > HANGS_AFTER {
                process.kill().expect("ours");
                panic!("it hangs: {}", text.lock().expect("no panic inside"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let was_up = is_up();
        if was_up {
            kill_process(pid, Signal::TERM).expect("signalled");
        }
        let code = process.wait().expect("ends").code();
        reader.join().expect("no panic");
        let said = text.lock().expect("no panic inside").clone();
        if was_up {
            assert_eq!(code, Some(0), "{said}");
            return Started::Up;
        }
        Started::Refused(code, said)
    })
}

/// Starts a gateway with something in a place. It must not come up by taking it from another
/// program, and leaves it as it is.
fn judge(place: Place, thing: Thing, owner: Option<u32>) {
    let deployment = deployment_with_folder();
    let (path, target) = (place.path(&deployment), deployment.path("target"));
    if place != Place::Folder {
        DirBuilder::new().mode(0o700).create(deployment.path("run")).expect("made");
    }
    let listener = thing.make(&path, &target);
    if let Some(owner) = owner {
        lchown(&path, Some(owner), Some(owner)).expect("allowed to root");
    }
    let before = look(&path, &target);
    let what = format!("{thing:?} at {place:?}, owner {owner:?}");
    let started = start_and_stop(&deployment);
    println!("{what}: {started:?}");
    match started {
        // A folder of one's own is where it should be; so is a lock file, whatever its text. A
        // socket that was never renamed is one that a gateway left half made.
        Started::Up => {
            let may_use = matches!(
                (place, thing),
                (Place::Folder, Thing::Folder)
                    | (Place::Lock, Thing::File)
                    | (Place::Temporary, Thing::Socket | Thing::DeadSocket)
            );
            assert!(may_use && owner.is_none(), "{what}: it is up");
        }
        Started::Refused(code, text) => {
            assert!(matches!(code, Some(1 | 64)), "{what}: {code:?}: {text}");
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            assert!(text.contains(&name), "{what}: {text}");
            assert_eq!(look(&path, &target), before, "{what}: {text}");
            assert!(!text.contains("panicked"), "{what}: {text}");
        }
    }
    if listener.is_some() && place != Place::Temporary {
        UnixStream::connect(&path).expect("the other program still listens");
    }
}

#[test]
fn things_of_other_programs_are_left_alone() {
    let _one_at_a_time = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for place in Place::ALL {
        Thing::ALL.into_iter().for_each(|thing| judge(place, thing, None));
    }
}

#[test]
fn things_of_strangers_are_left_alone() {
    let _one_at_a_time = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    if own_user_account() != 0 {
        return skip("files of another user need root");
    }
    for place in Place::ALL {
        Thing::ALL.into_iter().for_each(|thing| judge(place, thing, Some(STRANGER)));
    }
}

/// Another user has made the folder, and a link in it that leads the gateway elsewhere.
#[test]
fn a_strangers_folder_is_not_entered() {
    let _one_at_a_time = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    if own_user_account() != 0 {
        return skip("files of another user need root");
    }
    let deployment = deployment_with_folder();
    let (folder, target) = (deployment.path("run"), deployment.path("target"));
    std::fs::create_dir(&folder).expect("made");
    std::fs::set_permissions(&folder, Permissions::from_mode(0o755)).expect("ours");
    std::fs::write(&target, TEXT).expect("written");
    symlink(&target, folder.join("east.sock.lock")).expect("made");
    chown(&folder, Some(STRANGER), Some(STRANGER)).expect("allowed to root");
    let Started::Refused(code, text) = start_and_stop(&deployment) else { panic!("it is up") };
    assert_eq!(code, Some(64), "{text}");
    assert!(text.contains("who can put another socket there"), "{text}");
    assert_eq!(std::fs::read_to_string(&target).expect("there"), TEXT);
    let left: Vec<_> = std::fs::read_dir(&folder).expect("readable").collect();
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(!std::fs::symlink_metadata(&target).expect("there").file_type().is_socket());
}
