//! The page in one file, which contains the answers to the page's requests, with pictures at one resolution.

use std::io::Write;

use flate2::Compression;
use flate2::write::DeflateEncoder;
use serde_json::{Map, Value, json};

use crate::answer::Question;
use crate::objects::instance_frame;
use crate::picture::Frame;
use crate::point::ColourBy;
use crate::{Error, Opened, Session, page};

/// Limit of the file's size, in bytes. Answers that don't fit are left out.
const FILE_BYTES_MAX: usize = 2_900_000;
/// Numbers of bins of a picture.
const COLUMNS: usize = 280;
const ROWS: usize = 180;
/// Maximum number of objects with pictures.
const OBJECTS_MAX: usize = 24;
const MATRIX_BINS: u32 = 256;

/// The view that a file opens with.
#[derive(Clone, Debug, Default)]
pub(crate) struct SavedView {
    /// Fragment of the page's address, after `#`.
    pub address: String,
    /// Time that the file covers, in nanoseconds since the recording began; `None`: all of the time.
    pub selection: Option<(u64, u64)>,
}

impl Session {
    /// Content of the file: HTML that needs no server and no network.
    ///
    /// # Errors
    /// [`Error::NoPage`].
    pub fn standalone(&self) -> Result<String, Error> {
        self.saved(&SavedView::default())
    }

    /// Content of a file that opens with the given view.
    ///
    /// # Errors
    /// [`Error::NoPage`].
    pub(crate) fn saved(&self, view: &SavedView) -> Result<String, Error> {
        if page::HTML.is_empty() {
            return Err(Error::NoPage);
        }
        if let Some(selection) = view.selection {
            for opened in self.recordings() {
                opened.stage_of(Some(selection))?;
                opened.read_exactly(selection)?;
            }
        }
        let mut answers = Answers {
            session: self,
            embedded: Map::new(),
            bytes: page::SCRIPT.len() + page::STYLE.len() + page::HTML.len(),
        };
        let mut open = self.overview();
        open["saved"] = json!({ "address": view.address, "selected": view.selection });
        answers.keep("open", open.to_string().as_bytes());
        let time = view.selection.map_or(String::new(), |(since, until)| {
            format!("&since={since}&until={until}")
        });
        for number in 0..self.simulations.len() {
            let question = format!("simulation?number={number}");
            answers.embed(&question, &question);
        }
        for number in 0..self.sweeps.len() {
            let question = format!("sweep?number={number}");
            answers.embed(&question, &question);
        }
        if self.job.is_some() {
            answers.embed("job", "job");
        }
        for number in 0..self.logs.len() {
            let question = format!("log?number={number}");
            answers.embed(&question, &question);
        }
        let recordings = self.recordings();
        for number in 0..recordings.len() {
            for path in ["progress", "plan"] {
                let question = format!("{path}?recording={number}");
                answers.embed(&question, &question);
            }
            for path in ["report", "summary", "threads", "lines", "flame"] {
                let question = format!("{path}?recording={number}");
                answers.embed(&question, &format!("{question}{time}"));
            }
        }
        for (number, opened) in recordings.iter().enumerate() {
            answers.embed_pictures(number, opened, view, &time);
        }
        Ok(html(&answers.embedded))
    }
}

/// The object in the view, then the costliest objects.
fn first_objects(count: usize, address: &str) -> Vec<usize> {
    let mut fields = address.split('&');
    let seen = fields.find_map(|field| field.strip_prefix("object=")?.parse().ok());
    let seen = seen.filter(|&object: &usize| object < count);
    let costliest = (0..count.min(OBJECTS_MAX)).filter(|&object| Some(object) != seen);
    seen.into_iter().chain(costliest).collect()
}

/// Colourings in which the recording can have several colours, most useful first.
fn colourings(opened: &Opened) -> Vec<ColourBy> {
    let mut colourings = vec![ColourBy::Thread, ColourBy::Function, ColourBy::Kind];
    if opened.scale.nodes > 1 {
        colourings.extend([ColourBy::CpuNode, ColourBy::Locality, ColourBy::PageNode]);
    }
    if opened.recording.metadata.source.measures_latency() {
        colourings.extend([ColourBy::Level, ColourBy::Latency]);
    }
    colourings
}

fn picture(recording: usize, by: ColourBy, frame: &Frame) -> String {
    let Frame {
        place_from,
        place_to,
        from_ns,
        to_ns,
        columns,
        rows,
    } = frame;
    format!(
        "picture?recording={recording}&by={}&place_from={place_from}&place_to={place_to}\
         &from_ns={from_ns}&to_ns={to_ns}&columns={columns}&rows={rows}",
        by.as_str()
    )
}

struct Answers<'a> {
    session: &'a Session,
    embedded: Map<String, Value>,
    bytes: usize,
}

impl Answers<'_> {
    /// Makes a request, and embeds the answer under `name` if there is room.
    fn embed(&mut self, name: &str, question: &str) {
        let answer = self.session.answer(&Question::parse(question));
        if answer.status == 200 {
            self.keep(name, &answer.body);
        }
    }

    /// Embeds pictures of a recording and of its objects.
    fn embed_pictures(&mut self, number: usize, opened: &Opened, view: &SavedView, time: &str) {
        let stage = opened.stage();
        let colourings = colourings(opened);
        let whole = Frame {
            place_from: 0,
            place_to: opened.space.bytes().max(1),
            from_ns: 0,
            to_ns: opened.scale.duration_ns(),
            columns: COLUMNS,
            rows: ROWS,
        };
        for by in &colourings {
            let short = format!("over-time?recording={number}&by={}", by.as_str());
            self.embed(&short, &format!("{short}&columns={COLUMNS}"));
        }
        let groups = &stage.attribution.objects;
        for object in first_objects(groups.len(), &view.address) {
            let group = &groups[object];
            let pages = group.affinity.pages;
            let question = format!(
                "matrix?recording={number}&object={object}&from=0&to={pages}&bins={MATRIX_BINS}"
            );
            self.embed(&question, &format!("{question}{time}"));
            for by in &colourings {
                if let Some(frame) = instance_frame(opened, group) {
                    let frame = Frame {
                        columns: COLUMNS,
                        rows: ROWS,
                        ..frame
                    };
                    let question = picture(number, *by, &frame);
                    self.embed(&question, &question);
                }
            }
            if object == 0 {
                for by in &colourings {
                    let question = picture(number, *by, &whole);
                    self.embed(&question, &question);
                    let histogram = question.replacen("picture", "histogram", 1);
                    let short = format!("histogram?recording={number}&by={}", by.as_str());
                    self.embed(&short, &histogram);
                }
            }
        }
    }

    /// Embeds an answer under `name`, if there is room.
    fn keep(&mut self, name: &str, answer: &[u8]) {
        let mut packed = DeflateEncoder::new(Vec::new(), Compression::best());
        let packed = packed
            .write_all(answer)
            .and_then(|()| packed.finish())
            .expect("writing to memory");
        let text = base64(&packed);
        let bytes = name.len() + text.len() + 8;
        if self.bytes + bytes <= FILE_BYTES_MAX {
            self.bytes += bytes;
            self.embedded.insert(name.to_owned(), Value::from(text));
        }
    }
}

fn html(answers: &Map<String, Value>) -> String {
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; img-src data: blob:; \
         base-uri 'none'; form-action 'none'",
        page::SCRIPT_SHA256,
        page::STYLE_SHA256
    );
    // A tag inside a script element would end the element, so `<` is escaped.
    let answers = Value::from(answers.clone())
        .to_string()
        .replace('<', "\\u003c");
    page::HTML
        .replace(
            "<meta charset=\"utf-8\">",
            &format!(
                "<meta charset=\"utf-8\">\n<meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">"
            ),
        )
        .replace(
            "<link rel=\"stylesheet\" href=\"page.css\">",
            &format!("<style>{}</style>", page::STYLE),
        )
        .replace("<script src=\"page.js\" defer></script>\n", "")
        .replace(
            "</body>",
            &format!(
                "<script type=\"application/json\" id=\"answers\">{answers}</script>\n\
                 <script>{}</script>\n</body>",
                page::SCRIPT
            ),
        )
}

/// Base64 of RFC 4648, with padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for part in bytes.chunks(3) {
        let at = |position: usize| u32::from(part.get(position).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for digit in 0..4 {
            let value = bits >> (18 - 6 * digit) & 63;
            text.push(match digit <= part.len() {
                true => DIGITS[value as usize].into(),
                false => '=',
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_as_the_standard_has_it() {
        let found =
            ["", "f", "fo", "foo", "foob", "fooba", "foobar"].map(|text| base64(text.as_bytes()));
        assert_eq!(
            found,
            [
                "", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"
            ]
        );
        assert_eq!(base64(&[0xff, 0xfe, 0xfb]), "//77");
    }

    #[cfg(has_page)]
    #[test]
    fn nothing_ends_the_data_early() {
        let mut answers = Map::new();
        answers.insert(
            "</script><script>alert(1)</script>".to_owned(),
            Value::from("x"),
        );
        let html = html(&answers);
        assert_eq!(
            html.matches("<script").count(),
            2,
            "data, and the page's own"
        );
        assert!(!html.contains("alert(1)</script>"));
        assert!(html.contains("sha256-"));
    }
}
