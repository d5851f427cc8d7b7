//! What happened in a simulation over time, and what each page did, as JSON.

use std::io;

use nearpage_simulator::{Movements, Part, Timeline};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter};
use serde_json::{Serializer, Value, json};

/// A page's nodes, a character each.
const DIGITS: &[u8; 64] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+/";

/// What pages did: `kept` has a list of time in ns, page, what was done, node before and node after for each movement;
/// `extents` the homes of pages that lie together, first and last.
pub fn movements_json(movements: &Movements, page_bytes: u64) -> Value {
    let kept = movements.kept.iter();
    let extents = movements.extents.iter();
    let digit = |node: u8| char::from(DIGITS[usize::from(node) % DIGITS.len()]);
    json!({
        "page_bytes": page_bytes,
        "kept": kept.map(|one| json!([one.time_ns, one.page, one.kind.as_str(), one.from, one.to]))
            .collect::<Vec<Value>>(),
        "beyond": movements.beyond,
        "extents": extents.map(|extent| {
            let homes = extent.homes.iter();
            json!({
                "process": extent.application,
                "address": format!("{:#x}", extent.page_number.saturating_mul(page_bytes)),
                "first": homes.clone().map(|home| digit(home.0)).collect::<String>(),
                "last": homes.map(|home| digit(home.1)).collect::<String>(),
            })
        }).collect::<Vec<Value>>(),
        "pages_beyond": movements.pages_beyond,
    })
}

pub(super) fn timeline_json(timeline: &Timeline) -> Value {
    let row = |part: &Part| {
        let &Part {
            local,
            remote,
            migrated,
            replicated,
            collapsed,
            ref controller_load,
        } = part;
        let counts = [local, remote, migrated, replicated, collapsed];
        counts.iter().chain(controller_load).copied().collect()
    };
    let rows: Vec<Vec<u64>> = timeline.parts().iter().map(row).collect();
    json!({ "part_ns": timeline.part_ns(), "parts": rows })
}

/// JSON for people: indented, but a list inside a list is on one line.
pub(super) fn pretty(value: &Value) -> String {
    let mut text = Vec::new();
    let formatter = Lines {
        inner: PrettyFormatter::new(),
        lists: Vec::new(),
        flat: 0,
    };
    let written = value.serialize(&mut Serializer::with_formatter(&mut text, formatter));
    written.expect("a value has text for keys, and memory takes it");
    text.push(b'\n');
    String::from_utf8(text).expect("JSON is UTF-8")
}

struct Lines {
    inner: PrettyFormatter<'static>,
    /// Of what is open: is it a list?
    lists: Vec<bool>,
    /// How much of it is on one line.
    flat: usize,
}

impl Formatter for Lines {
    fn begin_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        if self.flat > 0 || self.lists.last() == Some(&true) {
            self.flat += 1;
            return writer.write_all(b"[");
        }
        self.lists.push(true);
        self.inner.begin_array(writer)
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        if self.flat > 0 {
            self.flat -= 1;
            return writer.write_all(b"]");
        }
        self.lists.pop();
        self.inner.end_array(writer)
    }

    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        match self.flat {
            0 => self.inner.begin_array_value(writer, first),
            _ if first => Ok(()),
            _ => writer.write_all(b", "),
        }
    }

    fn end_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        match self.flat {
            0 => self.inner.end_array_value(writer),
            _ => Ok(()),
        }
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.lists.push(false);
        self.inner.begin_object(writer)
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.lists.pop();
        self.inner.end_object(writer)
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.inner.begin_object_key(writer, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.inner.begin_object_value(writer)
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.inner.end_object_value(writer)
    }
}

#[cfg(test)]
mod tests {
    use nearpage_simulator::{Movement, MovementKind, PageExtent};

    use super::*;

    #[test]
    fn lists_in_lists_are_on_one_line() {
        let value = json!({ "a": [1, 2], "b": [[1, "x", []], [2]], "c": {}, "d": [], "e": [{ "f": [[3]] }] });
        let text = pretty(&value);
        assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), value);
        assert_eq!(
            text,
            "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": [\n    [1, \"x\", []],\n    [2]\n  ],\n  \
             \"c\": {},\n  \"d\": [],\n  \"e\": [\n    {\n      \"f\": [\n        [3]\n      ]\n    }\n  ]\n}\n"
        );
    }

    #[test]
    fn pages_have_a_character_for_each_home() {
        let movements = Movements {
            kept: vec![Movement {
                time_ns: 70,
                page: 2,
                kind: MovementKind::Migrate,
                from: 0,
                to: 11,
            }],
            beyond: 5,
            extents: vec![
                PageExtent {
                    application: 0,
                    page_number: 0x7f000,
                    homes: vec![(0, 0), (1, 1)],
                },
                PageExtent {
                    application: 1,
                    page_number: 1,
                    homes: vec![(0, 11)],
                },
            ],
            pages_beyond: 0,
        };
        assert_eq!(
            movements_json(&movements, 4096),
            json!({
                "page_bytes": 4096,
                "kept": [[70, 2, "migrate", 0, 11]],
                "beyond": 5,
                "extents": [
                    { "process": 0, "address": "0x7f000000", "first": "01", "last": "01" },
                    { "process": 1, "address": "0x1000", "first": "0", "last": "b" },
                ],
                "pages_beyond": 0,
            })
        );
    }
}
