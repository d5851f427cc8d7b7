//! JSON of a simulation's timeline, and of movements of pages.

use std::io;

use nearpage_simulator::{MovementKind, Movements, PageExtent, Part, Timeline};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::{Formatter, PrettyFormatter};

/// Characters for nodes, one for each page.
const DIGITS: &[u8; 64] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+/";

/// Movements of pages in all of the simulated time, including time outside marked phases.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct MovementsOutput {
    /// Size of a page.
    pub page_bytes: u64,
    /// The first movements in order of time.
    pub kept: Vec<MovementRow>,
    /// Number of movements that are not kept.
    pub omitted: u64,
    /// Pages that were touched, in order of process and address.
    pub extents: Vec<Extent>,
    /// Number of pages that are not in `extents`.
    pub pages_omitted: u64,
}

/// Nanoseconds since the simulation began; position of the page among all pages of `extents`; kind of movement; node
/// before; node after.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct MovementRow(u64, u32, MovementKind, u16, u16);

/// An object and its pages.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectPages {
    /// Process, from 0.
    pub process: u16,
    /// Address of the first page, divided by the page size, and that of the page after the last.
    pub page_numbers: (u64, u64),
    /// Name of the object.
    pub name: String,
}

/// Position in the extent of the object's first page; number of the object's pages in the extent; name.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ObjectRow(u64, u64, String);

/// Consecutive pages in a process's address space.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Extent {
    /// Process, from 0.
    process: u16,
    /// Address of the first page, in hexadecimal.
    address: String,
    /// A character for each page: node after the first touch, `0` to `9`, `a` to `z`, `A` to `Z`, `+`, `/`.
    first: String,
    /// A character for each page: node at the end.
    last: String,
    /// Objects of a page and more, in the order of places. If objects overlap, the inner object comes later.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    objects: Vec<ObjectRow>,
}

/// Parts of the objects that lie in an extent, in the order of the objects.
fn objects_of(extent: &PageExtent, objects: &[ObjectPages]) -> Vec<ObjectRow> {
    let (first, pages) = (extent.page_number, extent.homes.len() as u64);
    let end = first.saturating_add(pages);
    let of_process = objects
        .iter()
        .filter(|object| object.process == extent.application);
    let inside = of_process.filter_map(|object| {
        let (begins, ends) = object.page_numbers;
        let (begins, ends) = (begins.max(first), ends.min(end));
        (begins < ends).then(|| ObjectRow(begins - first, ends - begins, object.name.clone()))
    });
    inside.collect()
}

impl MovementsOutput {
    /// Movements of pages of `page_bytes` bytes, with the objects on them, in order.
    pub fn new(movements: &Movements, page_bytes: u64, objects: &[ObjectPages]) -> Self {
        let digit = |node: u8| char::from(DIGITS[usize::from(node) % DIGITS.len()]);
        let extent = |extent: &PageExtent| Extent {
            process: extent.application,
            address: format!("{:#x}", extent.page_number.saturating_mul(page_bytes)),
            first: extent.homes.iter().map(|home| digit(home.0)).collect(),
            last: extent.homes.iter().map(|home| digit(home.1)).collect(),
            objects: objects_of(extent, objects),
        };
        let kept = movements.kept.iter();
        Self {
            page_bytes,
            kept: kept
                .map(|one| MovementRow(one.time_ns, one.page, one.kind, one.from, one.to))
                .collect(),
            omitted: movements.omitted,
            extents: movements.extents.iter().map(extent).collect(),
            pages_omitted: movements.pages_omitted,
        }
    }
}

/// The simulated time in equal parts.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct TimelineOutput {
    /// Length of a part.
    part_ns: f64,
    /// For each part: local misses, remote misses, pages migrated or spread, copies made, pages collapsed, then the
    /// requests that each node's controller served.
    parts: Vec<Vec<u64>>,
}

impl From<&Timeline> for TimelineOutput {
    fn from(timeline: &Timeline) -> Self {
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
        Self {
            part_ns: timeline.part_ns(),
            parts: timeline.parts().iter().map(row).collect(),
        }
    }
}

/// Indented JSON, with lists inside lists on one line.
pub(super) fn pretty(value: &impl Serialize) -> String {
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
    /// For each open container: is it a list?
    lists: Vec<bool>,
    /// Number of open containers that are written on one line.
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
    use nearpage_simulator::Movement;
    use serde_json::{Value, json};

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
            omitted: 5,
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
            pages_omitted: 0,
        };
        let object = |process, page_numbers, name: &str| ObjectPages {
            process,
            page_numbers,
            name: name.to_owned(),
        };
        let objects = [
            object(0, (0x7eff0, 0x7f001), "grid"),
            object(0, (0x7f001, 0x7f009), "rows"),
            object(1, (2, 3), "elsewhere"),
        ];
        assert_eq!(
            json!(MovementsOutput::new(&movements, 4096, &objects)),
            json!({
                "page_bytes": 4096,
                "kept": [[70, 2, "migrate", 0, 11]],
                "omitted": 5,
                "extents": [
                    {
                        "process": 0,
                        "address": "0x7f000000",
                        "first": "01",
                        "last": "01",
                        "objects": [[0, 1, "grid"], [1, 1, "rows"]],
                    },
                    { "process": 1, "address": "0x1000", "first": "0", "last": "b" },
                ],
                "pages_omitted": 0,
            })
        );
    }
}
