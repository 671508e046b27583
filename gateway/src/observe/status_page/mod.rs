//! The status page: one HTML file without foreign hosts and without a build.
//!
//! Its parts are files of this folder. `head.html`, `style.css` and `body.html` are what a reader
//! sees before any data are there. The scripts form one: `model.js` computes what is shown,
//! `tables.js` and `pictures.js` show it, `main.js` fetches the data and saves the page. Texts of
//! gateways and trainers enter the page as text alone, never as HTML.

use bytes::Bytes;
use ring::digest;
use std::sync::LazyLock;

/// The page, and the header that lets a browser run its own script alone.
#[derive(Debug)]
pub(super) struct StatusPage {
    /// The HTML.
    pub html: Bytes,
    /// The value of `Content-Security-Policy`: one style and one script by their digests, data of
    /// the same gateway, and nothing else.
    pub security_policy: String,
}

/// Returns the status page in HTML, which never changes while the program runs.
pub(super) fn status_page() -> &'static StatusPage {
    /// The status page, made at the first request and never changed.
    static PAGE: LazyLock<StatusPage> = LazyLock::new(make_status_page);
    &PAGE
}

/// Builds the status page from HTML, style and script, and the security policy that allows only
/// these two.
fn make_status_page() -> StatusPage {
    // A function keeps the names of the script from those of the browser.
    let script = ["\n(() => {", MODEL, TABLES, PICTURES, MAIN, "})();\n"].concat();
    // Browsers take the digests of all that stands between the tags.
    let security_policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        status_page_sha256_in_base64(&script),
        status_page_sha256_in_base64(STYLE)
    );
    let html = [HEAD, "<style>", STYLE, "</style>", BODY, "<script>", &script, "</script>", END];
    StatusPage { html: html.concat().into(), security_policy }
}

/// Returns the SHA-256 digest of a text in base64, as a `Content-Security-Policy` has it.
fn status_page_sha256_in_base64(text: &str) -> String {
    let hashed = digest::digest(&digest::SHA256, text.as_bytes());
    let bytes: &[u8] = hashed.as_ref();
    let mut encoded = String::new();
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0, |bits: u32, byte| (bits << 8) | u32::from(*byte));
        let bits = bits << (8 * (3 - three.len()));
        for place in 0..4 {
            let index = ((bits >> (18 - 6 * place)) & 63) as usize;
            encoded.push(if place <= three.len() { char::from(BASE64[index]) } else { '=' });
        }
    }
    encoded
}

/// The 64 characters of base64: the one at place `n`, from 0, stands for the six bits of the number
/// `n`.
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The beginning of the status page in HTML, up to its style.
const HEAD: &str = include_str!("head.html");
/// The style of the status page, in CSS.
const STYLE: &str = include_str!("style.css");
/// The body of the status page in HTML, up to its script.
const BODY: &str = include_str!("body.html");
/// The part of the status page's script that computes the values to show.
const MODEL: &str = include_str!("model.js");
/// The part of the status page's script that shows tables.
const TABLES: &str = include_str!("tables.js");
/// The part of the status page's script that draws pictures.
const PICTURES: &str = include_str!("pictures.js");
/// The part of the status page's script that fetches data and saves the page.
const MAIN: &str = include_str!("main.js");
/// The end of the status page in HTML.
const END: &str = "\n</body>\n</html>\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_in_base64() {
        // RFC 4648 and the digest of the empty text.
        assert_eq!(
            status_page_sha256_in_base64(""),
            "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="
        );
    }

    #[test]
    fn the_page_is_small_and_knows_no_other_host() {
        let page = std::str::from_utf8(&status_page().html).expect("UTF-8");
        assert!(page.len() <= 100_000, "{} bytes", page.len());
        for (tag, count) in [("<script>", 1), ("</script>", 2), ("<style>", 1), ("<html", 1)] {
            assert_eq!(page.matches(tag).count(), count, "{tag}");
        }
        let hosts: Vec<&str> = page.split("://").skip(1).collect();
        // The name of SVG is no address.
        assert!(hosts.iter().all(|rest| rest.starts_with("www.w3.org/2000/svg\"")), "{hosts:?}");
        assert!(!page.contains("src=") && !page.contains("@import") && !page.contains("url("));
    }

    #[test]
    fn texts_enter_the_page_as_text_alone() {
        let script = [MODEL, TABLES, PICTURES, MAIN].concat();
        for way in [
            "innerHTML",
            "outerHTML =",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "Function(",
            "srcdoc",
            "setAttribute(\"on",
            "setAttribute(\"style",
            "javascript:",
        ] {
            assert!(!script.contains(way), "{way}");
        }
        let handlers = [" onclick", " onload", " onerror", " style="];
        assert!(handlers.iter().all(|handler| !BODY.contains(handler) && !HEAD.contains(handler)));
    }
}
