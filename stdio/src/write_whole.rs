//! Writing a text to a file descriptor to its end.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, write};
use std::io;
use std::os::fd::BorrowedFd;

/// Writes all of `text`, and waits while the descriptor takes nothing, even where another process
/// has made it non-blocking. Returns the number of bytes written, and the error where those are not
/// all.
pub(super) fn write_whole(descriptor: BorrowedFd<'_>, text: &[u8]) -> (usize, io::Result<()>) {
    let mut written = 0;
    while written < text.len() {
        match write(descriptor, &text[written..]) {
            Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
            Ok(taken) => written += taken,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let mut fds = [PollFd::from_borrowed_fd(descriptor, PollFlags::OUT)];
                match poll(&mut fds, None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return (written, Err(error.into())),
                }
            }
            Err(error) => return (written, Err(error.into())),
        }
    }
    (written, Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_non_blocking_descriptor_takes_the_whole_text() {
        let (ours, mut theirs) = UnixStream::pair().expect("sockets");
        ours.set_nonblocking(true).expect("a socket");
        let text = vec![b'x'; 1 << 22];
        let length = text.len();
        let writing = std::thread::spawn(move || write_whole(ours.as_fd(), &text));
        let mut read = Vec::new();
        theirs.read_to_end(&mut read).expect("read");
        let (written, outcome) = writing.join().expect("no panic");
        assert!(outcome.is_ok(), "{outcome:?}");
        assert_eq!((written, read.len()), (length, length));
    }

    #[test]
    fn a_full_disk_and_a_closed_pipe_are_errors() {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("a device");
        let (written, outcome) = write_whole(full.as_fd(), b"report");
        assert_eq!(outcome.expect_err("full").kind(), io::ErrorKind::StorageFull);
        assert_eq!(written, 0);
        let (reader, writer) = io::pipe().expect("a pipe");
        drop(reader);
        let (_, outcome) = write_whole(writer.as_fd(), b"report");
        assert_eq!(outcome.expect_err("closed").kind(), io::ErrorKind::BrokenPipe);
    }
}
