//! Files of the page, which `build.rs` makes of `web/`.

use nearpage_http::Answer;

/// Content Security Policy: the page may run its own script, draw, and send requests to its own server.
pub(crate) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'";

#[cfg(has_page)]
mod built {
    pub const HTML: &str =
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../web/index.html"));
    pub const SCRIPT: &str = include_str!(concat!(env!("OUT_DIR"), "/page.js"));
    pub const STYLE: &str = include_str!(concat!(env!("OUT_DIR"), "/page.css"));
    /// Base64 of the SHA-256 of script and style, for the policy of a file that contains both.
    pub const SCRIPT_SHA256: &str = env!("NEARPAGE_SCRIPT_SHA256");
    pub const STYLE_SHA256: &str = env!("NEARPAGE_STYLE_SHA256");
}

#[cfg(not(has_page))]
mod built {
    pub const HTML: &str = "";
    pub const SCRIPT: &str = "";
    pub const STYLE: &str = "";
    pub const SCRIPT_SHA256: &str = "";
    pub const STYLE_SHA256: &str = "";
}

pub(crate) use built::{HTML, SCRIPT, SCRIPT_SHA256, STYLE, STYLE_SHA256};

pub(crate) fn file(path: &str) -> Option<Answer> {
    let path = path.split('?').next().unwrap_or_default();
    let (content_type, text) = match path {
        "" => ("text/html; charset=utf-8", HTML),
        "page.js" => ("text/javascript; charset=utf-8", SCRIPT),
        "page.css" => ("text/css; charset=utf-8", STYLE),
        _ => return None,
    };
    Some(Answer {
        status: 200,
        content_type,
        body: text.as_bytes().into(),
    })
}

#[cfg(all(test, has_page))]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    #[test]
    fn the_page_is_small() {
        let mut packed = GzEncoder::new(Vec::new(), Compression::best());
        for text in [HTML, SCRIPT, STYLE] {
            packed.write_all(text.as_bytes()).expect("in memory");
        }
        let bytes = packed.finish().expect("in memory").len();
        assert!(bytes <= 500_000, "{bytes} bytes compressed");
        assert!(
            !SCRIPT.contains("http://") && !SCRIPT.contains("https://"),
            "names no server"
        );
    }
}
