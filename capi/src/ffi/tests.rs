//! The header and these types agree, and arguments that cannot be used are errors.

use super::connection_calls::{landbridge_close, landbridge_connect};
use super::group_calls::{landbridge_get_info, landbridge_split};
use super::library_calls::{landbridge_status_text, landbridge_version};
use super::memory_calls::landbridge_alloc;
use super::operation_calls::{landbridge_operation_free, landbridge_test, landbridge_wait};
use super::posting::collective_calls::{landbridge_all_reduce, landbridge_barrier};
use super::posting::send_calls::landbridge_receive;
use super::report::{ERROR_TEXT_BYTES, ErrorReport, report};
use super::store_calls::key_value_calls::landbridge_store_num_keys;
use super::store_calls::returned_value_calls::{
    landbridge_store_value, landbridge_store_values_count, landbridge_store_values_free,
};
use super::types::{CallOptions, ConnectOptions, Info, NO_NUMBER};
use crate::attached_group::AttachedGroup;
use crate::call_error::CallError;
use crate::call_status::CallStatus;
use crate::store_values::StoreValues;
use gateway::client::{DEFAULT_TIMEOUT, STORE_TIMEOUT};
use gateway::local::protocol::TOKEN_BYTES;
use gateway::memory::arena::ALIGN_BYTES;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::store::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_int};
use std::fmt::Write;
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::Command;
use std::ptr;

/// Returns the size of the field that `field` borrows.
fn field_size<T, F>(_field: fn(&T) -> &F) -> u64 {
    size_of::<F>() as u64
}

/// Lists offset and size of each field of a structure of the header, by its name in C.
macro_rules! offsets {
    ($wanted:ident, $name:literal, $type:ty, $($field:ident),+) => {
        $wanted.push((format!("sizeof({})", $name), size_of::<$type>() as u64));
        $(
            let field = stringify!($field);
            $wanted.push((
                format!("offsetof({}, {field})", $name),
                offset_of!($type, $field) as u64,
            ));
            $wanted.push((
                format!("sizeof((({} *)0)->{field})", $name),
                field_size(|value: &$type| &value.$field),
            ));
        )+
    };
}

/// Returns expressions of C for the places of all fields of structures, and what each must be.
fn expected_offsets() -> Vec<(String, u64)> {
    let mut wanted = Vec::new();
    offsets!(wanted, "landbridge_error", ErrorReport, status, text);
    offsets!(
        wanted,
        "landbridge_connect_options",
        ConnectOptions,
        struct_bytes,
        config,
        gateway,
        region,
        socket,
        token_file,
        token,
        job,
        rank,
        local_rank,
        gateway_user,
        arena_bytes,
        timeout_s,
        address,
        ca,
        certificate,
        key,
        dumps
    );
    offsets!(wanted, "landbridge_call_options", CallOptions, struct_bytes, timeout_s, weight);
    offsets!(
        wanted,
        "landbridge_info",
        Info,
        struct_bytes,
        rank,
        size,
        epoch,
        committed_step,
        has_committed_step,
        state
    );
    wanted
}

/// Returns expressions of C over the header, and what each must be.
fn expectations() -> Vec<(String, u64)> {
    let mut wanted = expected_offsets();
    for name in ["status", "dtype", "op"] {
        wanted.push((format!("sizeof(landbridge_{name})"), size_of::<c_int>() as u64));
    }
    for status in CallStatus::ALL {
        // `NoGateway` is called LANDBRIDGE_NO_GATEWAY.
        let mut name = String::from("LANDBRIDGE");
        for letter in format!("{status:?}").chars() {
            if letter.is_ascii_uppercase() {
                name.push('_');
            }
            name.push(letter.to_ascii_uppercase());
        }
        wanted.push((name, status as u64));
    }
    let numbered = Dtype::ALL.into_iter().map(|dtype| (dtype.name(), dtype as u64));
    let numbered = numbered.chain(ReduceOp::ALL.into_iter().map(|op| (op.name(), op as u64)));
    wanted.extend(
        numbered.map(|(name, code)| (format!("LANDBRIDGE_{}", name.to_ascii_uppercase()), code)),
    );
    for (name, value) in [
        ("ERROR_TEXT_BYTES", ERROR_TEXT_BYTES as u64),
        ("TOKEN_BYTES", TOKEN_BYTES as u64),
        ("ALIGN_BYTES", ALIGN_BYTES),
        ("DEFAULT_TIMEOUT_S", DEFAULT_TIMEOUT.ns() / 1_000_000_000),
        ("NO_RANK", u64::from(NO_NUMBER)),
        ("NO_USER", u64::from(NO_NUMBER)),
        ("NO_COLOR", u64::from(NO_NUMBER)),
        ("TAG_MAX", u64::from(u16::MAX)),
        ("STORE_TIMEOUT_S", STORE_TIMEOUT.ns() / 1_000_000_000),
        ("STORE_KEY_BYTES_MAX", KEY_BYTES_MAX as u64),
        ("STORE_VALUE_BYTES_MAX", VALUE_BYTES_MAX as u64),
    ] {
        wanted.push((format!("LANDBRIDGE_{name}"), value));
    }
    let version = "LANDBRIDGE_VERSION_MAJOR * 10000 + LANDBRIDGE_VERSION_MINOR * 100 + \
                   LANDBRIDGE_VERSION_PATCH";
    wanted.push((version.to_owned(), u64::from(landbridge_version())));
    wanted
}

/// Returns the text of the header.
fn header() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/landbridge.h");
    std::fs::read_to_string(path).expect("readable")
}

#[test]
fn the_header_and_the_library_agree_on_every_number() {
    let wanted = expectations();
    let mut program = "#include <landbridge.h>\n#include <stdio.h>\nint main(void) {\n".to_owned();
    for (expression, _) in &wanted {
        let print = format!("printf(\"%llu\\n\", (unsigned long long)({expression}));");
        writeln!(program, "{print}").expect("memory");
    }
    program += "return 0;\n}\n";
    let folder = tempfile::tempdir().expect("a folder");
    let (source, binary) = (folder.path().join("numbers.c"), folder.path().join("numbers"));
    std::fs::write(&source, program).expect("written");
    let compiled = Command::new("cc")
        .args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-Wpedantic", "-I"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include"))
        .args([&source, Path::new("-o"), &binary])
        .output()
        .expect("a C compiler is installed");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let printed = Command::new(&binary).output().expect("runs");
    let printed = String::from_utf8(printed.stdout).expect("text");
    let found: Vec<u64> = printed.lines().map(|line| line.parse().expect("a number")).collect();
    assert_eq!(found.len(), wanted.len());
    for ((expression, value), found) in wanted.iter().zip(found) {
        assert_eq!(found, *value, "{expression}");
    }
}

#[test]
fn the_header_has_no_number_that_the_library_lacks() {
    let text = header();
    let known: BTreeMap<String, u64> = expectations().into_iter().collect();
    let members = text.lines().filter_map(|line| {
        let (name, value) = line.trim().trim_end_matches(',').split_once(" = ")?;
        Some((name, value.parse::<u64>().ok()?)).filter(|(name, _)| name.starts_with("LANDBRIDGE_"))
    });
    let members: Vec<(&str, u64)> = members.collect();
    assert_eq!(members.len(), CallStatus::ALL.len() + Dtype::ALL.len() + ReduceOp::ALL.len());
    for (name, value) in members {
        assert_eq!(known.get(name), Some(&value), "{name}");
    }
}

/// Calls a function with a place for its error, and returns what it wrote.
fn outcome(call: impl FnOnce(*mut ErrorReport) -> c_int) -> (c_int, String) {
    let mut error = ErrorReport::new(CallStatus::Ok, "not written");
    let status = call(&raw mut error);
    assert_eq!(error.status, status, "both say the same");
    let bytes: Vec<u8> = error.text.iter().map(|byte| *byte as u8).collect();
    let text = CStr::from_bytes_until_nul(&bytes).expect("it ends");
    (status, text.to_str().expect("UTF-8").to_owned())
}

/// Returns the options that the macro of the header makes.
fn fresh_options() -> ConnectOptions {
    ConnectOptions {
        struct_bytes: size_of::<ConnectOptions>(),
        config: ptr::null(),
        gateway: ptr::null(),
        region: ptr::null(),
        socket: ptr::null(),
        token_file: ptr::null(),
        token: ptr::null(),
        job: ptr::null(),
        rank: NO_NUMBER,
        local_rank: NO_NUMBER,
        gateway_user: NO_NUMBER,
        arena_bytes: 1 << 20,
        timeout_s: 0.0,
        address: ptr::null(),
        ca: ptr::null(),
        certificate: ptr::null(),
        key: ptr::null(),
        dumps: ptr::null(),
    }
}

/// Connects with these options; returns the status and the text.
fn connect(options: &ConnectOptions) -> (c_int, String) {
    let mut group = ptr::null_mut::<AttachedGroup>();
    // SAFETY: every pointer is NULL or leads to a value that lives longer than the call.
    let found = outcome(|error| unsafe { landbridge_connect(options, &raw mut group, error) });
    assert!(group.is_null(), "nothing answers");
    found
}

#[test]
fn null_in_the_place_of_a_handle_is_an_error() {
    let invalid = CallStatus::InvalidArgument as c_int;
    let (none, no_operation) = (ptr::null_mut::<AttachedGroup>(), ptr::null_mut());
    let mut memory = ptr::null_mut();
    let (mut done, mut keys) = (7, 7);
    let (mut made, nothing) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: every pointer is NULL, or leads to a value that lives longer than the call.
    let calls = unsafe {
        [
            outcome(|error| landbridge_connect(ptr::null(), ptr::null_mut(), error)),
            outcome(|error| landbridge_get_info(none, ptr::null_mut(), error)),
            outcome(|error| landbridge_alloc(none, 1, &raw mut memory, error)),
            outcome(|error| landbridge_barrier(none, ptr::null(), ptr::null_mut(), error)),
            outcome(|error| landbridge_wait(no_operation, 0.0, error)),
            outcome(|error| landbridge_test(no_operation, &raw mut done, error)),
            outcome(|error| landbridge_split(none, 0, 0, 1.0, &raw mut made, error)),
            outcome(|error| landbridge_split(none, 0, 0, 1.0, ptr::null_mut(), error)),
            outcome(|error| {
                landbridge_receive(nothing, 0, 1, 0, 0, none, ptr::null(), ptr::null_mut(), error)
            }),
            outcome(|error| landbridge_store_num_keys(none, 1.0, &raw mut keys, error)),
            outcome(|error| landbridge_store_num_keys(none, 1.0, ptr::null_mut(), error)),
        ]
    };
    for (status, text) in calls {
        assert_eq!(status, invalid, "{text}");
        assert!(text.ends_with(" is NULL"), "{text}");
    }
    assert_eq!((done, keys), (7, 7), "an output of a call that failed is as it was");
    // SAFETY: NULL is allowed.
    unsafe {
        landbridge_close(none);
        landbridge_operation_free(no_operation);
        assert_eq!(landbridge_wait(no_operation, 0.0, ptr::null_mut()), invalid, "nobody reads it");
    }
}

#[test]
fn codes_and_handles_of_no_meaning_are_errors() {
    let post = |dtype, op, group| {
        outcome(|error| {
            let (options, operation) = (ptr::null(), ptr::null_mut());
            // SAFETY: every pointer is NULL, or a misaligned one that is not followed.
            unsafe {
                landbridge_all_reduce(
                    ptr::null(),
                    ptr::null_mut(),
                    1,
                    dtype,
                    op,
                    group,
                    options,
                    operation,
                    error,
                )
            }
        })
    };
    let none = ptr::null_mut::<AttachedGroup>();
    let invalid = CallStatus::InvalidArgument as c_int;
    let misaligned = none.wrapping_byte_add(1);
    for (found, words) in [
        (post(0, 1, none), "dtype 0"),
        (post(263, 1, none), "dtype 263"),
        (post(1, -1, none), "op -1"),
        (post(Dtype::I32 as c_int, ReduceOp::Avg as c_int, none), "avg is not defined on i32"),
        (post(Dtype::F32 as c_int, ReduceOp::Bxor as c_int, none), "bxor is not defined on f32"),
        (post(1, 1, none), "group is NULL"),
        (post(1, 1, misaligned), "group is misaligned"),
    ] {
        assert_eq!(found.0, invalid, "{}", found.1);
        assert!(found.1.starts_with(words), "{}", found.1);
    }
}

#[test]
fn options_of_another_size_or_meaning_are_refused() {
    let socket = CString::new("/nowhere/socket").expect("no 0");
    let job = CString::new("train").expect("no 0");
    let wrong = CString::new([b'/', 0xff]).expect("no 0");
    let token = [7u8; TOKEN_BYTES];
    let by_socket = || ConnectOptions {
        socket: socket.as_ptr(),
        job: job.as_ptr(),
        token: token.as_ptr(),
        rank: 0,
        ..fresh_options()
    };
    let invalid = CallStatus::InvalidArgument as c_int;
    for (options, words) in [
        (fresh_options(), "accepted: one of `config`, `socket` and `address`"),
        (ConnectOptions { config: socket.as_ptr(), ..by_socket() }, "accepted: one of `config`"),
        (ConnectOptions { address: job.as_ptr(), ..by_socket() }, "accepted: one of `config`"),
        (ConnectOptions { ca: job.as_ptr(), ..by_socket() }, "ca, certificate and key: only with"),
        (ConnectOptions { struct_bytes: 8, ..by_socket() }, "options: struct_bytes is 8"),
        (ConnectOptions { rank: NO_NUMBER, ..by_socket() }, "with `socket`, `job` and `rank`"),
        (ConnectOptions { job: ptr::null(), ..by_socket() }, "with `socket`, `job` and `rank`"),
        (ConnectOptions { token: ptr::null(), ..by_socket() }, "with `socket`, accepted: either"),
        (ConnectOptions { token_file: job.as_ptr(), ..by_socket() }, "with `socket`, accepted"),
        (ConnectOptions { region: job.as_ptr(), ..by_socket() }, "region and local_rank: only"),
        (ConnectOptions { gateway: job.as_ptr(), ..by_socket() }, "gateway: only with"),
        (ConnectOptions { job: wrong.as_ptr(), ..by_socket() }, "job: not UTF-8"),
        (ConnectOptions { timeout_s: -1.0, ..by_socket() }, "timeout_s -1"),
        (ConnectOptions { timeout_s: f64::NAN, ..by_socket() }, "timeout_s NaN"),
        (ConnectOptions { arena_bytes: 0, ..by_socket() }, ""),
    ] {
        let (status, text) = connect(&options);
        assert_eq!(status, invalid, "{text}");
        assert!(text.starts_with(words), "{text}");
    }
    let (status, text) = connect(&by_socket());
    assert_eq!(status, CallStatus::NoGateway as c_int, "{text}");
    let by_file = ConnectOptions { config: socket.as_ptr(), rank: 0, ..fresh_options() };
    let (status, text) = connect(&by_file);
    assert_eq!(status, CallStatus::Config as c_int, "{text}");
    let (status, text) = connect(&ConnectOptions { token: token.as_ptr(), ..by_file });
    assert_eq!(status, invalid, "{text}");
}

#[test]
fn options_of_another_host_that_cannot_be_used_are_refused() {
    let [tls, file, job] = ["tls://127.0.0.1:1", "/nowhere/ca.pem", "train"]
        .map(|text| CString::new(text).expect("no 0"));
    let token = [7u8; TOKEN_BYTES];
    let by_address = || ConnectOptions {
        address: tls.as_ptr(),
        ca: file.as_ptr(),
        job: job.as_ptr(),
        token: token.as_ptr(),
        rank: 0,
        ..fresh_options()
    };
    let invalid = CallStatus::InvalidArgument as c_int;
    for (options, words) in [
        (
            ConnectOptions { address: job.as_ptr(), ..by_address() },
            "address `train`: accepted: tls",
        ),
        (ConnectOptions { ca: ptr::null(), ..by_address() }, "with `address`, `ca` must be set"),
        (ConnectOptions { rank: NO_NUMBER, ..by_address() }, "with `address`, `job` and `rank`"),
        (ConnectOptions { token: ptr::null(), ..by_address() }, "with `address`, accepted: either"),
        (ConnectOptions { key: file.as_ptr(), ..by_address() }, "accepted: both `certificate`"),
        (ConnectOptions { gateway_user: 0, ..by_address() }, "gateway_user: only with `socket`"),
    ] {
        let (status, text) = connect(&options);
        assert_eq!(status, invalid, "{text}");
        assert!(text.starts_with(words), "{text}");
    }
    let (status, text) = connect(&by_address());
    assert_eq!(status, CallStatus::Config as c_int, "{text}");
    // A program that was compiled with the first header has none of these fields.
    let before = offset_of!(ConnectOptions, address);
    let (status, text) = connect(&ConnectOptions { struct_bytes: before, ..by_address() });
    assert_eq!(status, invalid, "{text}");
    assert!(text.starts_with("accepted: one of"), "{text}");
    // Another one lacks the folder for dumps alone.
    let empty = c"";
    let with_dumps = || ConnectOptions { dumps: empty.as_ptr(), ..by_address() };
    let (status, text) = connect(&with_dumps());
    assert_eq!((status, &*text), (invalid, "dumps is empty"));
    let before = offset_of!(ConnectOptions, dumps);
    let (status, text) = connect(&ConnectOptions { struct_bytes: before, ..with_dumps() });
    assert_eq!(status, CallStatus::Config as c_int, "{text}");
}

#[test]
fn a_panic_becomes_a_status() {
    // SAFETY: the place for the error lives longer than the call.
    let (status, text) = outcome(|error| unsafe { report(error, || panic!("for {}", "a test")) });
    assert_eq!(status, CallStatus::Internal as c_int);
    assert!(text.ends_with("for a test"), "{text}");
}

#[test]
fn a_long_text_ends_at_a_character() {
    let long = "é".repeat(ERROR_TEXT_BYTES);
    let fail = || Err(CallError::new(CallStatus::Config, format!("\0{long}")));
    // SAFETY: the place for the error lives longer than the call.
    let (status, text) = outcome(|error| unsafe { report(error, fail) });
    assert_eq!(status, CallStatus::Config as c_int);
    assert_eq!(text, format!(" {}", "é".repeat((ERROR_TEXT_BYTES - 2) / 2)));
}

#[test]
fn every_status_has_words() {
    let words = |code: c_int| {
        // SAFETY: the library's texts live for ever.
        unsafe { CStr::from_ptr(landbridge_status_text(code)) }.to_str().expect("UTF-8")
    };
    assert_eq!(words(CallStatus::RankLost as c_int), "rank lost (cause: peer)");
    assert_eq!(words(0), "no error");
    assert_eq!(words(-3), "unknown status");
}

#[test]
fn values_are_read_with_their_lengths_and_ends() {
    let given = vec![b"key".to_vec(), Vec::new(), vec![0, 255]];
    let values = Box::into_raw(Box::new(StoreValues::new(given.clone())));
    let mut bytes = 77;
    // SAFETY: the handle is freed at the end, and `bytes` lives longer than the calls.
    unsafe {
        assert_eq!(landbridge_store_values_count(values), given.len());
        for (at, wanted) in given.iter().enumerate() {
            let start = landbridge_store_value(values, at, &raw mut bytes).cast::<u8>();
            let found = std::slice::from_raw_parts(start, bytes + 1);
            assert_eq!(found.split_last(), Some((&0, wanted.as_slice())));
        }
        assert!(landbridge_store_value(values, 3, &raw mut bytes).is_null());
        assert_eq!(bytes, 0, "there is no such value");
        assert!(landbridge_store_value(values, usize::MAX, ptr::null_mut()).is_null());
        landbridge_store_values_free(values);
        assert_eq!(landbridge_store_values_count(ptr::null()), 0);
        landbridge_store_values_free(ptr::null_mut());
    }
}
