use crate::certs::{
    CertificateAuthority, CertificateOptions, CertificateValidity, CertsError, FileOutcome,
    make_certificate_files,
};

use crate::config::FabricFile;
use crate::wan::connect::tls::{Credentials, FabricSignature, FabricSignatureError};
use hier_collectives::topology::{Fabric, FabricGatewaySpec, FabricRegionSpec};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const FABRIC: &str = include_str!("../../../../configs/two-region/fabric.toml");

fn fabric(text: &str) -> Fabric {
    FabricFile::parse(Path::new("fabric.toml"), text).expect("valid").fabric().clone()
}

fn options(jobs: &[String], force: bool) -> CertificateOptions<'_> {
    CertificateOptions { validity: CertificateValidity::days(30), jobs, force, renew_days: 0 }
}

fn made(outcomes: &[FileOutcome]) -> Vec<String> {
    let name = |path: &PathBuf| path.file_name().expect("a file").to_string_lossy().into_owned();
    let made = outcomes.iter().filter_map(|outcome| match outcome {
        FileOutcome::Made(path) => Some(name(path)),
        FileOutcome::Kept(_) => None,
    });
    made.collect()
}

#[test]
fn keys_and_tokens_are_readable_by_their_owner_alone() {
    let out = tempfile::tempdir().expect("a temporary directory");
    let jobs = ["train".to_owned()];
    let outcomes =
        make_certificate_files(&fabric(FABRIC), out.path(), &options(&jobs, false)).expect("made");
    let files =
        ["ca.pem", "ca.key", "east-0.pem", "east-0.key", "west-0.pem", "west-0.key", "train.token"];
    assert_eq!(made(&outcomes), files);
    for file in files {
        let mode = std::fs::metadata(out.path().join(file)).expect("there").permissions().mode();
        let wanted = if file.ends_with(".pem") { 0o644 } else { 0o600 };
        assert_eq!(mode & 0o777 & !wanted, 0, "{file}");
    }
    let token = std::fs::read_to_string(out.path().join("train.token")).expect("there");
    assert_eq!(token.trim_end().len(), 64);
    assert_eq!(std::fs::read_dir(out.path()).expect("there").count(), files.len());
}

#[test]
fn keys_are_in_version_1_of_pkcs8() {
    let out = tempfile::tempdir().expect("a temporary directory");
    make_certificate_files(&fabric(FABRIC), out.path(), &options(&[], false)).expect("made");
    for file in ["ca.key", "east-0.key"] {
        let key = PrivatePkcs8KeyDer::from_pem_file(out.path().join(file)).expect("a key");
        // A sequence of 46 bytes that begins with version 0, by which version 1 is written.
        assert_eq!(key.secret_pkcs8_der()[..5], [0x30, 0x2e, 0x02, 0x01, 0x00], "{file}");
    }
    // The CA signs again after it was loaded from its file.
    let wider = fabric(&FABRIC.replace("gateway.west-0", "gateway.west-1"));
    make_certificate_files(&wider, out.path(), &options(&[], false)).expect("signed");
    let path = |name: &str| out.path().join(name);
    Credentials::load(&path("west-1.pem"), &path("west-1.key"), &path("ca.pem"))
        .and_then(|credentials| credentials.server_config().map(|_| ()))
        .expect("TLS takes the key");
}

#[test]
fn a_second_run_adds_missing_files_and_keeps_the_rest() {
    let out = tempfile::tempdir().expect("a temporary directory");
    make_certificate_files(&fabric(FABRIC), out.path(), &options(&[], false)).expect("made");
    let before = std::fs::read(out.path().join("east-0.pem")).expect("there");
    let wider = fabric(&FABRIC.replace("gateway.west-0", "gateway.west-1"));
    let jobs = ["other".to_owned()];
    let outcomes =
        make_certificate_files(&wider, out.path(), &options(&jobs, false)).expect("made");
    assert_eq!(made(&outcomes), ["west-1.pem", "west-1.key", "other.token"]);
    assert_eq!(std::fs::read(out.path().join("east-0.pem")).expect("there"), before);
}

#[test]
fn certificates_that_expire_soon_are_renewed_when_asked() {
    let out = tempfile::tempdir().expect("a temporary directory");
    let fabric = fabric(FABRIC);
    let make = |days, renew_days| {
        let validity = CertificateValidity::days(days);
        let options = CertificateOptions { validity, jobs: &[], force: false, renew_days };
        made(&make_certificate_files(&fabric, out.path(), &options).expect("made"))
    };
    make(20, 0);
    let (east, west) = (["east-0.pem", "east-0.key"], ["west-0.pem", "west-0.key"]);
    std::fs::remove_file(out.path().join("west-0.key")).expect("there");
    assert_eq!(make(365, 0), west, "made again, and valid for a year");
    assert_eq!(make(365, 19), [""; 0], "none is due");
    assert_eq!(make(365, 30), east);
    assert_eq!(make(365, 30), [""; 0], "renewed for a year");
    let path = |name: &str| out.path().join(name);
    Credentials::load(&path("east-0.pem"), &path("east-0.key"), &path("ca.pem"))
        .expect("the key fits, and the CA is the same");
}

#[test]
fn a_key_of_another_certificate_is_named_with_both_files() {
    let out = tempfile::tempdir().expect("a temporary directory");
    make_certificate_files(&fabric(FABRIC), out.path(), &options(&[], false)).expect("made");
    let path = |name: &str| out.path().join(name);
    let error = Credentials::load(&path("east-0.pem"), &path("west-0.key"), &path("ca.pem"));
    let text = error.expect_err("another's key").to_string();
    assert!(text.contains("west-0.key is not the key of"), "{text}");
    assert!(text.contains("east-0.pem"), "{text}");
    // Good PEM that is no key of a kind that TLS uses.
    let text = "-----BEGIN PRIVATE KEY-----\nMAMCAQA=\n-----END PRIVATE KEY-----\n";
    std::fs::write(path("odd.key"), text).expect("ours");
    let error = Credentials::load(&path("east-0.pem"), &path("odd.key"), &path("ca.pem"));
    let text = error.expect_err("no key").to_string();
    assert!(text.contains("odd.key: this private key cannot be used; accepted: ECDSA"), "{text}");
}

#[test]
fn a_job_named_twice_has_one_token() {
    let out = tempfile::tempdir().expect("a temporary directory");
    let jobs = ["zoo".to_owned(), "zoo".to_owned()];
    let made = make_certificate_files(&fabric(FABRIC), out.path(), &options(&jobs, false));
    let tokens = |outcome: &&FileOutcome| matches!(outcome, FileOutcome::Made(file) | FileOutcome::Kept(file) if file.ends_with("zoo.token"));
    assert_eq!(made.expect("made").iter().filter(tokens).count(), 1);
}

#[test]
fn an_output_that_is_no_folder_is_named() {
    let out = tempfile::tempdir().expect("a temporary directory");
    let file = out.path().join("ca.pem");
    std::fs::write(&file, "").expect("ours");
    let error = make_certificate_files(&fabric(FABRIC), &file, &options(&[], false));
    let text = error.expect_err("a file").to_string();
    assert!(
        text.ends_with("ca.pem is no folder: name one for the files, which may be new"),
        "{text}"
    );
}

#[test]
fn a_ca_is_not_replaced_unless_forced() {
    let out = tempfile::tempdir().expect("a temporary directory");
    make_certificate_files(&fabric(FABRIC), out.path(), &options(&[], false)).expect("made");
    std::fs::remove_file(out.path().join("ca.key")).expect("there");
    let refused = make_certificate_files(&fabric(FABRIC), out.path(), &options(&[], false))
        .expect_err("no key");
    assert!(matches!(refused, CertsError::CaKeyMissing { .. }), "{refused}");
    let outcomes =
        make_certificate_files(&fabric(FABRIC), out.path(), &options(&[], true)).expect("forced");
    assert_eq!(made(&outcomes).len(), 6, "all certificates are of the new CA");
}

#[test]
fn names_that_would_overwrite_other_files_are_refused() {
    let out = tempfile::tempdir().expect("a temporary directory");
    // The config's reader refuses the name, too.
    let region = FabricRegionSpec {
        name: "east".to_owned(),
        speeds: vec![1.0],
        gateways: vec![FabricGatewaySpec::new("ca".to_owned(), 1, None)],
    };
    let ca = Fabric::new("one", 1500, vec![region], vec![]).expect("valid");
    assert!(matches!(
        make_certificate_files(&ca, out.path(), &options(&[], false)),
        Err(CertsError::NameTaken)
    ));
    let jobs = ["../train".to_owned()];
    let refused = make_certificate_files(&fabric(FABRIC), out.path(), &options(&jobs, false));
    assert!(matches!(refused, Err(CertsError::JobName(_))));
}

#[test]
fn a_folder_that_another_command_writes_is_left_alone() {
    let out = tempfile::tempdir().expect("a temporary directory");
    let other = std::fs::File::open(out.path()).expect("there");
    other.lock().expect("free");
    let error = make_certificate_files(&fabric(FABRIC), out.path(), &options(&[], false));
    let error = error.expect_err("locked");
    assert!(matches!(error, CertsError::Busy { .. }), "{error}");
    assert_eq!(std::fs::read_dir(out.path()).expect("there").count(), 0);
    drop(other);
    make_certificate_files(&fabric(FABRIC), out.path(), &options(&[], false)).expect("made");
}

#[test]
fn a_key_of_another_ca_signs_nothing() {
    let (one, other) =
        (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    for out in [&one, &other] {
        make_certificate_files(&fabric(FABRIC), out.path(), &options(&[], false)).expect("made");
    }
    std::fs::copy(other.path().join("ca.key"), one.path().join("ca.key")).expect("copied");
    std::fs::remove_file(one.path().join("east-0.pem")).expect("there");
    let error = make_certificate_files(&fabric(FABRIC), one.path(), &options(&[], false));
    let error = error.expect_err("not the key of its CA").to_string();
    assert!(error.contains("ca.key is not the key of") && error.contains("--force"), "{error}");
    assert!(!one.path().join("east-0.pem").exists(), "nothing is signed");
}

#[test]
fn a_file_that_cannot_be_written_leaves_no_other() {
    let out = tempfile::tempdir().expect("a temporary directory");
    // No file can take the place of a folder.
    std::fs::create_dir(out.path().join("ca.pem")).expect("made");
    make_certificate_files(&fabric(FABRIC), out.path(), &options(&[], true)).expect_err("a folder");
    let left = std::fs::read_dir(out.path()).expect("there");
    let left: Vec<_> = left.map(|entry| entry.expect("readable").file_name()).collect();
    assert_eq!(left, ["ca.pem"]);
}

#[test]
fn a_fabric_is_accepted_only_as_the_ca_signed_it() {
    let out = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str| out.path().join(name);
    make_certificate_files(&fabric(FABRIC), out.path(), &options(&[], false)).expect("made");
    let authority = CertificateAuthority::load(&file("ca.pem"), &file("ca.key")).expect("a CA");
    let credentials = Credentials::load(&file("east-0.pem"), &file("east-0.key"), &file("ca.pem"));
    let credentials = credentials.expect("keys");
    let signature = authority.sign_fabric(FABRIC).expect("signed");
    let read = FabricSignature::parse(&signature.to_string()).expect("as written");
    assert_eq!(read, signature);
    assert_eq!(credentials.verify_fabric(FABRIC, read), Ok(()));
    let altered = FABRIC.replacen("80 ms", "81 ms", 1);
    let other = Err(FabricSignatureError::Other);
    assert_eq!(credentials.verify_fabric(&altered, read), other);
    let outsider = CertificateAuthority::generate("two-region").expect("a CA");
    let forged = outsider.sign_fabric(FABRIC).expect("signed");
    assert_eq!(credentials.verify_fabric(FABRIC, forged), other);
    let text = signature.to_string();
    for bad in
        [&text[1..], &text[..text.len() - 2], &text.replacen('1', "2", 1), &format!("{text}0\n")]
    {
        assert_eq!(FabricSignature::parse(bad), Err(FabricSignatureError::Malformed), "{bad}");
    }
    let signed = text.lines().next_back().expect("digits");
    let with_sign = text.replace(&signed[..2], "+1");
    assert_eq!(FabricSignature::parse(&with_sign), Err(FabricSignatureError::Malformed));
}
