//! Certificates and tokens of a deployment: a CA, a certificate for each gateway, a token for
//! each job.

use crate::wan::connect::tls::dns_name;
use hier_collectives::topology::Fabric;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ED25519,
};
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use time::{Duration, OffsetDateTime};

/// From when until when a certificate is believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    not_before: OffsetDateTime,
    not_after: OffsetDateTime,
}

impl Validity {
    /// From an hour ago, for clocks that differ, for `days` days.
    pub fn days(days: u32) -> Self {
        let now = OffsetDateTime::now_utc();
        Self { not_before: now - CLOCK_SKEW, not_after: now + Duration::days(days.into()) }
    }

    /// Over since an hour ago, to prove that such a certificate is refused.
    pub fn over() -> Self {
        let now = OffsetDateTime::now_utc();
        Self { not_before: now - Duration::days(2), not_after: now - CLOCK_SKEW }
    }
}

/// Signs certificates that the gateways of one deployment believe.
pub struct CertificateAuthority {
    issuer: Issuer<'static, KeyPair>,
    certificate_pem: String,
    key_pem: String,
}

/// A certificate and its private key, both PEM.
#[derive(Clone)]
pub struct Issued {
    /// The certificate.
    pub certificate_pem: String,
    /// Its key. Secret.
    pub key_pem: String,
}

/// Why certificates were not made. The fault of whoever asked, or of the file system.
#[derive(Debug, thiserror::Error)]
pub enum CertsError {
    /// A file that cannot be read or written.
    #[error("{}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// A CA without its key: it may be kept elsewhere, so it is not replaced.
    #[error(
        "{} is there, but {} is not: put the key beside it to sign with this CA, or give --force \
         to make another CA, which all gateways must then be given", certificate.display(), key.display()
    )]
    KeyElsewhere {
        /// The CA's certificate.
        certificate: PathBuf,
        /// Its key.
        key: PathBuf,
    },
    /// A name that would overwrite the CA's own files.
    #[error("a gateway cannot be called `ca`: ca.pem and ca.key belong to the CA")]
    NameTaken,
    /// A job name that is no file name.
    #[error("`{0}` is no job name: lower-case letters, digits and inner hyphens, at most 63")]
    JobName(String),
    /// A CA file that is no CA, or a name that no certificate can have.
    #[error("{what}: {source}")]
    Certificate {
        /// The file or name at fault.
        what: String,
        /// The reason.
        source: rcgen::Error,
    },
}

impl CertificateAuthority {
    /// Makes a CA of its own, believed for ten years.
    ///
    /// # Errors
    /// A fabric name that no certificate can have.
    pub fn generate(fabric: &str) -> Result<Self, CertsError> {
        let at_fault = |source| CertsError::Certificate { what: fabric.to_owned(), source };
        let mut params = CertificateParams::default();
        // Two CAs of one fabric are told apart by name, so that a stranger reads as one.
        let common_name = format!("Landbridge CA of {fabric}, {}", &token()[..8]);
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        set_validity(&mut params, Validity::days(CA_DAYS));
        let key = KeyPair::generate_for(&PKCS_ED25519).map_err(at_fault)?;
        let key_pem = key.serialize_pem();
        let certified = CertifiedIssuer::self_signed(params, key).map_err(at_fault)?;
        let certificate_pem = certified.pem();
        Self::from_pem(certificate_pem, key_pem).map_err(at_fault)
    }

    /// Takes up a CA made earlier.
    ///
    /// # Errors
    /// Files that cannot be read, or are no CA.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, CertsError> {
        let (certificate_pem, key_pem) = (read(certificate)?, read(key)?);
        Self::from_pem(certificate_pem, key_pem).map_err(|source| CertsError::Certificate {
            what: format!("{} and {}", certificate.display(), key.display()),
            source,
        })
    }

    /// Signs a certificate by which a gateway proves its name, on either side of a connection.
    ///
    /// # Errors
    /// A name that no certificate can have.
    pub fn issue(
        &self,
        gateway: &str,
        fabric: &str,
        validity: Validity,
    ) -> Result<Issued, CertsError> {
        let name = dns_name(gateway, fabric);
        let at_fault = |source| CertsError::Certificate { what: name.clone(), source };
        let mut params = CertificateParams::new(vec![name.clone()]).map_err(at_fault)?;
        params.distinguished_name.push(DnType::CommonName, gateway);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        set_validity(&mut params, validity);
        let key = KeyPair::generate_for(&PKCS_ED25519).map_err(at_fault)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(at_fault)?;
        Ok(Issued { certificate_pem: certificate.pem(), key_pem: key.serialize_pem() })
    }

    /// The CA's certificate, which every gateway is given.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    fn from_pem(certificate_pem: String, key_pem: String) -> Result<Self, rcgen::Error> {
        let key = KeyPair::from_pem(&key_pem)?;
        let issuer = Issuer::from_ca_cert_pem(&certificate_pem, key)?;
        Ok(Self { issuer, certificate_pem, key_pem })
    }
}

/// What [`make`] is to make besides the CA and the gateways' certificates.
#[derive(Debug, Clone)]
pub struct Order<'a> {
    /// How long the gateways' certificates are believed.
    pub validity: Validity,
    /// Jobs that get a token.
    pub jobs: &'a [String],
    /// Make everything anew, the CA too.
    pub force: bool,
}

/// A file that [`make`] wrote, or left as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Written now.
    Made(PathBuf),
    /// Was there already.
    Kept(PathBuf),
}

/// Makes what a deployment needs in `out`: `ca.pem` and `ca.key`, `NAME.pem` and `NAME.key` for
/// each gateway, `JOB.token` for each job; what is there already is kept, and signed for by the
/// same CA. Keys and tokens are readable by their owner only.
///
/// # Errors
/// A CA without its key, names that cannot be used, or a file system that refuses. Files made
/// before the error stay; a second run goes on from them.
pub fn make(fabric: &Fabric, out: &Path, order: &Order<'_>) -> Result<Vec<Outcome>, CertsError> {
    if fabric.gateway_named("ca").is_some() {
        return Err(CertsError::NameTaken);
    }
    if let Some(job) = order.jobs.iter().find(|job| !crate::config::is_name(job)) {
        return Err(CertsError::JobName(job.clone()));
    }
    std::fs::create_dir_all(out)
        .map_err(|source| CertsError::Io { file: out.to_owned(), source })?;
    let mut writer = Writer { out, force: order.force, outcomes: Vec::new() };
    let (authority, anew) = authority(fabric.name(), &mut writer)?;
    for gateway in fabric.gateways() {
        let (certificate, key) = (format!("{}.pem", gateway.name), format!("{}.key", gateway.name));
        if !anew && writer.keep(&[&certificate, &key]) {
            continue;
        }
        let issued = authority.issue(&gateway.name, fabric.name(), order.validity)?;
        writer.write(&certificate, &issued.certificate_pem, Access::Everyone)?;
        writer.write(&key, &issued.key_pem, Access::Owner)?;
    }
    for job in order.jobs {
        let file = format!("{job}.token");
        if !writer.keep(&[&file]) {
            writer.write(&file, &(token() + "\n"), Access::Owner)?;
        }
    }
    Ok(writer.outcomes)
}

/// The CA of the directory, and whether it was made now: then no older certificate is of use.
fn authority(
    fabric: &str,
    writer: &mut Writer<'_>,
) -> Result<(CertificateAuthority, bool), CertsError> {
    let (certificate, key) = (writer.out.join("ca.pem"), writer.out.join("ca.key"));
    if writer.keep(&["ca.pem", "ca.key"]) {
        return Ok((CertificateAuthority::load(&certificate, &key)?, false));
    }
    if certificate.exists() && !writer.force {
        return Err(CertsError::KeyElsewhere { certificate, key });
    }
    let authority = CertificateAuthority::generate(fabric)?;
    writer.write("ca.pem", &authority.certificate_pem, Access::Everyone)?;
    writer.write("ca.key", &authority.key_pem, Access::Owner)?;
    Ok((authority, true))
}

enum Access {
    Everyone,
    Owner,
}

struct Writer<'a> {
    out: &'a Path,
    force: bool,
    outcomes: Vec<Outcome>,
}

impl Writer<'_> {
    /// Whether all these files are there and are to stay; then notes it.
    fn keep(&mut self, names: &[&str]) -> bool {
        let files: Vec<PathBuf> = names.iter().map(|name| self.out.join(name)).collect();
        let keep = !self.force && files.iter().all(|file| file.exists());
        if keep {
            self.outcomes.extend(files.into_iter().map(Outcome::Kept));
        }
        keep
    }

    /// Writes beside the place and renames, so that no reader meets half a file or a wider mode.
    fn write(&mut self, name: &str, text: &str, access: Access) -> Result<(), CertsError> {
        let (file, fresh) = (self.out.join(name), self.out.join(format!(".{name}.new")));
        let at_fault = |source| CertsError::Io { file: file.clone(), source };
        match std::fs::remove_file(&fresh) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(at_fault(error));
            }
            _ => {}
        }
        let mode = match access {
            Access::Everyone => 0o644,
            Access::Owner => 0o600,
        };
        let mut options = std::fs::OpenOptions::new();
        let mut handle =
            options.write(true).create_new(true).mode(mode).open(&fresh).map_err(at_fault)?;
        handle.write_all(text.as_bytes()).map_err(at_fault)?;
        std::fs::rename(&fresh, &file).map_err(at_fault)?;
        self.outcomes.push(Outcome::Made(file));
        Ok(())
    }
}

/// 32 random bytes in hexadecimal.
fn token() -> String {
    let mut bytes = [0; 32];
    aws_lc_rs::rand::fill(&mut bytes).expect("the system has random bytes");
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes all");
        text
    })
}

fn read(file: &Path) -> Result<String, CertsError> {
    std::fs::read_to_string(file).map_err(|source| CertsError::Io { file: file.to_owned(), source })
}

fn set_validity(params: &mut CertificateParams, validity: Validity) {
    params.not_before = validity.not_before;
    params.not_after = validity.not_after;
}

/// Hosts whose clocks differ by less believe a fresh certificate at once.
const CLOCK_SKEW: Duration = Duration::hours(1);

/// The CA outlives the gateways' certificates: renewing those needs no change elsewhere.
const CA_DAYS: u32 = 3650;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::FabricFile;
    use std::os::unix::fs::PermissionsExt;

    const FABRIC: &str = include_str!("../../../configs/two-region/fabric.toml");

    fn fabric(text: &str) -> Fabric {
        FabricFile::parse(Path::new("fabric.toml"), text).expect("valid").fabric().clone()
    }

    fn order(jobs: &[String], force: bool) -> Order<'_> {
        Order { validity: Validity::days(30), jobs, force }
    }

    fn made(outcomes: &[Outcome]) -> Vec<String> {
        let name =
            |path: &PathBuf| path.file_name().expect("a file").to_string_lossy().into_owned();
        let made = outcomes.iter().filter_map(|outcome| match outcome {
            Outcome::Made(path) => Some(name(path)),
            Outcome::Kept(_) => None,
        });
        made.collect()
    }

    #[test]
    fn secrets_are_the_owners_alone() {
        let out = tempfile::tempdir().expect("a temporary directory");
        let jobs = ["train".to_owned()];
        let outcomes = make(&fabric(FABRIC), out.path(), &order(&jobs, false)).expect("made");
        let files = [
            "ca.pem",
            "ca.key",
            "east-0.pem",
            "east-0.key",
            "west-0.pem",
            "west-0.key",
            "train.token",
        ];
        assert_eq!(made(&outcomes), files);
        for file in files {
            let mode =
                std::fs::metadata(out.path().join(file)).expect("there").permissions().mode();
            let wanted = if file.ends_with(".pem") { 0o644 } else { 0o600 };
            assert_eq!(mode & 0o777 & !wanted, 0, "{file}");
        }
        let token = std::fs::read_to_string(out.path().join("train.token")).expect("there");
        assert_eq!(token.trim_end().len(), 64);
        assert_eq!(std::fs::read_dir(out.path()).expect("there").count(), files.len());
    }

    #[test]
    fn a_second_run_adds_what_is_missing_and_keeps_the_rest() {
        let out = tempfile::tempdir().expect("a temporary directory");
        make(&fabric(FABRIC), out.path(), &order(&[], false)).expect("made");
        let before = std::fs::read(out.path().join("east-0.pem")).expect("there");
        let wider = fabric(&FABRIC.replace("gateway.west-0", "gateway.west-1"));
        let jobs = ["other".to_owned()];
        let outcomes = make(&wider, out.path(), &order(&jobs, false)).expect("made");
        assert_eq!(made(&outcomes), ["west-1.pem", "west-1.key", "other.token"]);
        assert_eq!(std::fs::read(out.path().join("east-0.pem")).expect("there"), before);
    }

    #[test]
    fn a_ca_is_not_replaced_unless_forced() {
        let out = tempfile::tempdir().expect("a temporary directory");
        make(&fabric(FABRIC), out.path(), &order(&[], false)).expect("made");
        std::fs::remove_file(out.path().join("ca.key")).expect("there");
        let refused = make(&fabric(FABRIC), out.path(), &order(&[], false)).expect_err("no key");
        assert!(matches!(refused, CertsError::KeyElsewhere { .. }), "{refused}");
        let outcomes = make(&fabric(FABRIC), out.path(), &order(&[], true)).expect("forced");
        assert_eq!(made(&outcomes).len(), 6, "all certificates are of the new CA");
    }

    #[test]
    fn names_that_would_hurt_are_refused() {
        let out = tempfile::tempdir().expect("a temporary directory");
        let ca = fabric(&FABRIC.replace("gateway.west-0", "gateway.ca"));
        assert!(matches!(make(&ca, out.path(), &order(&[], false)), Err(CertsError::NameTaken)));
        let jobs = ["../train".to_owned()];
        let refused = make(&fabric(FABRIC), out.path(), &order(&jobs, false));
        assert!(matches!(refused, Err(CertsError::JobName(_))));
    }
}
