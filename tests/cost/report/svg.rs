//! The parts of SVG pictures that bars and flame graphs share.

/// Returns the beginning of a picture of this size in pixels, with a white ground.
pub fn begin_picture(width: f64, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    )
}

/// The end of a picture.
pub const END: &str = "</svg>\n";

/// Returns a text as it may stand in XML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
