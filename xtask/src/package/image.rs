//! A container image as an OCI image layout, made without a daemon.
//!
//! The archive has one layer FROM scratch. `podman load`, `skopeo copy oci-archive:` and recent
//! versions of `docker load` take it.

use super::archive::{gzip_archive, tar_archive};
use super::file_tree::{EXECUTABLE_MODE, FileTree, READABLE_MODE};
use super::package_checksum::sha256_package_checksum;
use super::program_build::Program;
use super::source_time::SourceTime;
use crate::child_command::CommandFailure;
use serde_json::{Value, json};
use std::path::Path;

/// 10001: the number of the user and group that an image's programs run as. The number is chosen,
/// so that it is commonly no user of the host.
pub const IMAGE_USER: u32 = 10001;

/// The properties of an image.
pub struct ImageDescription<'a> {
    /// Name and tag, such as `landbridge:0.1.0`.
    pub name: &'a str,
    /// Tag alone.
    pub version: &'a str,
    /// OCI's name of the architecture, such as `amd64`.
    pub architecture: &'a str,
    /// Time of the source.
    pub time: &'a SourceTime,
}

/// The blobs of a layout, by digest.
#[derive(Default)]
struct ImageBlobs {
    tree: FileTree,
}

impl ImageBlobs {
    /// Adds a blob. Returns its descriptor.
    fn add(&mut self, media_type: &str, bytes: Vec<u8>) -> Result<Value, CommandFailure> {
        let (digest, size) = (sha256_package_checksum(&bytes)?, bytes.len());
        self.tree.add_file(&format!("blobs/sha256/{digest}"), READABLE_MODE, bytes);
        Ok(json!({"mediaType": media_type, "digest": format!("sha256:{digest}"), "size": size}))
    }
}

/// Returns the layout of an image whose only layer has the files of `root`, as a tar archive.
///
/// # Errors
/// A digest cannot be made.
pub fn package_oci_image(
    image: &ImageDescription<'_>,
    root: &FileTree,
) -> Result<Vec<u8>, CommandFailure> {
    let ImageDescription { name, version, architecture, time } = image;
    let layer = tar_archive(root, "", time.seconds);
    let labels = json!({
        "org.opencontainers.image.title": "landbridge",
        "org.opencontainers.image.description": "all-reduce across data centres: the gateway",
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.version": version,
    });
    let config = json!({
        "architecture": architecture,
        "os": "linux",
        "created": time.text,
        "config": {
            "User": format!("{IMAGE_USER}:{IMAGE_USER}"),
            "Entrypoint": ["/usr/bin/landbridge"],
            "Cmd": ["run"],
            "Env": ["PATH=/usr/bin"],
            "WorkingDir": "/etc/landbridge",
            "StopSignal": "SIGTERM",
            "Labels": labels,
        },
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", sha256_package_checksum(&layer)?)]},
        "history": [{"created": time.text, "created_by": "cargo xtask package"}],
    });
    let mut blobs = ImageBlobs::default();
    let layer = blobs.add("application/vnd.oci.image.layer.v1.tar+gzip", gzip_archive(&layer))?;
    let config = config.to_string().into_bytes();
    let config = blobs.add("application/vnd.oci.image.config.v1+json", config)?;
    let manifest_type = "application/vnd.oci.image.manifest.v1+json";
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": manifest_type,
        "config": config,
        "layers": [layer],
        "annotations": labels,
    });
    let mut manifest = blobs.add(manifest_type, manifest.to_string().into_bytes())?;
    manifest["platform"] = json!({"architecture": architecture, "os": "linux"});
    manifest["annotations"] = json!({
        "org.opencontainers.image.ref.name": version,
        "io.containerd.image.name": format!("docker.io/library/{name}"),
    });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [manifest],
    });
    let mut tree = blobs.tree;
    tree.add_file("index.json", READABLE_MODE, index.to_string());
    tree.add_file("oci-layout", READABLE_MODE, json!({"imageLayoutVersion": "1.0.0"}).to_string());
    Ok(tar_archive(&tree, "", time.seconds))
}

/// Returns the files of the image's only layer: the program with the libraries that it loads, its
/// user, and the folders that it uses.
pub fn image_package_contents(root: &Path, program: &Program) -> Result<FileTree, CommandFailure> {
    let mut tree = FileTree::default();
    tree.add_from_disk(&program.path, "usr/bin/landbridge")?;
    for library in &program.libraries {
        // The loader looks for a library by this path, whatever links lead there on this host.
        let inside = library.display().to_string();
        tree.add_from_disk(library, inside.trim_start_matches('/'))?;
    }
    let name = "landbridge";
    let user = format!("{name}:x:{IMAGE_USER}:{IMAGE_USER}::/run/{name}:/usr/sbin/nologin\n");
    tree.add_file("etc/passwd", READABLE_MODE, format!("root:x:0:0::/:/usr/sbin/nologin\n{user}"));
    tree.add_file("etc/group", READABLE_MODE, format!("root:x:0:\n{name}:x:{IMAGE_USER}:\n"));
    tree.add_folder("etc/landbridge", EXECUTABLE_MODE, 0);
    tree.add_folder("run/landbridge", EXECUTABLE_MODE, IMAGE_USER);
    tree.add_folder("tmp", 0o1777, 0);
    tree.add_from_disk(&root.join("LICENSE"), "usr/share/doc/landbridge/copyright")?;
    Ok(tree)
}

#[cfg(test)]
mod tests {
    use super::super::file_tree::EXECUTABLE_MODE;
    use super::*;
    use std::collections::BTreeMap;

    /// Returns the layout of an image with one program.
    fn small(text: &str) -> Vec<u8> {
        let time = SourceTime { seconds: 86400, text: "1970-01-02T00:00:00Z".to_owned() };
        let image = ImageDescription {
            name: "landbridge:1.2.3",
            version: "1.2.3",
            architecture: "amd64",
            time: &time,
        };
        let mut root = FileTree::default();
        root.add_file("usr/bin/landbridge", EXECUTABLE_MODE, text);
        package_oci_image(&image, &root).unwrap_or_else(|why| panic!("{}", why.why))
    }

    /// Returns the files of a tar archive whose paths are short.
    fn untar(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        let mut at = 0;
        while archive[at] != 0 {
            let text = |from: usize, length: usize| {
                let field = &archive[at + from..at + from + length];
                String::from_utf8_lossy(field).trim_end_matches('\u{0}').to_owned()
            };
            let size = usize::from_str_radix(&text(124, 12), 8).expect("octal");
            files.insert(text(0, 100), archive[at + 512..at + 512 + size].to_vec());
            at += 512 + size.next_multiple_of(512);
        }
        files
    }

    /// Returns the blob of a descriptor, after its digest and size were compared.
    fn blob(files: &BTreeMap<String, Vec<u8>>, descriptor: &Value) -> Vec<u8> {
        let digest = descriptor["digest"].as_str().and_then(|text| text.strip_prefix("sha256:"));
        let digest = digest.expect("a digest");
        let bytes = files[&format!("blobs/sha256/{digest}")].clone();
        assert_eq!(sha256_package_checksum(&bytes).ok().as_deref(), Some(digest));
        assert_eq!(descriptor["size"].as_u64(), u64::try_from(bytes.len()).ok());
        bytes
    }

    #[test]
    fn descriptors_lead_from_the_index_to_the_program() {
        let files = untar(&small("text"));
        let read = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).expect("JSON");
        assert_eq!(read(&files["oci-layout"])["imageLayoutVersion"], "1.0.0");
        let manifest = read(&blob(&files, &read(&files["index.json"])["manifests"][0]));
        let config = read(&blob(&files, &manifest["config"]));
        assert_eq!(config["config"]["Entrypoint"][0], "/usr/bin/landbridge");
        let layer = blob(&files, &manifest["layers"][0]);
        let mut plain = Vec::new();
        let mut decoder = flate2::read::GzDecoder::new(&*layer);
        std::io::Read::read_to_end(&mut decoder, &mut plain).expect("gzip");
        let diff = format!("sha256:{}", sha256_package_checksum(&plain).unwrap_or_default());
        assert_eq!(config["rootfs"]["diff_ids"][0], diff);
        assert_eq!(untar(&plain)["usr/bin/landbridge"], b"text");
    }

    #[test]
    fn the_same_image_has_the_same_bytes() {
        assert_eq!(small("text"), small("text"));
        assert_ne!(small("text"), small("other"));
    }
}
