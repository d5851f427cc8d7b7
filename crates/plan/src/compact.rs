//! Writing the compact form ([`nearpage_wire::compact_plan`]).

use nearpage_files::bytes_of_text;
use nearpage_machine::NodeId;
use nearpage_wire::compact_plan::{
    FrameRange, Header, MAGIC, Module, NONE, Phase, Pin, Rule, Run, Section, Table, Weight,
};

use nearpage_wire::pieces::part;

use crate::Error;
use crate::evaluate::ModuleName;

#[cfg(target_endian = "big")]
compile_error!(
    "the compact plan is little-endian, and its structs are written as they lie in memory"
);

/// # Safety
/// The type has to be an integer, or a `repr(C)` struct of integers without padding: any bytes, zeros too, are a value.
unsafe trait Plain: Sized {
    /// All bytes zero.
    fn zeroed() -> Self {
        // SAFETY: all bytes zero are a value, as the trait requires.
        unsafe { std::mem::zeroed() }
    }

    fn bytes(entries: &[Self]) -> &[u8] {
        // SAFETY: there is no padding, so every byte is initialised.
        unsafe { std::slice::from_raw_parts(entries.as_ptr().cast(), size_of_val(entries)) }
    }
}

macro_rules! plain {
    ($($name:ty: $bytes:literal)*) => { $(
        // SAFETY: fields are integers, or arrays and structs of integers, as the type's module says; its size is the
        // sum of theirs, so that there is no padding.
        unsafe impl Plain for $name {}
        const _: () = assert!(size_of::<$name>() == $bytes, "its layout changed: check that it has no padding");
    )* };
}
plain!(Header: 120 Section: 32 Module: 48 Rule: 120 FrameRange: 24 Run: 16 Weight: 8 Pin: 24 Phase: 32 u16: 2 u8: 1);

/// First entry of a table, and number of entries.
pub(crate) type Part = [u32; 2];

/// The tables of a compact plan under construction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tables {
    /// Unit of page runs, in bytes.
    pub page_bytes: u64,
    pub sections: Vec<Section>,
    pub rules: Vec<Rule>,
    pub pins: Vec<Pin>,
    pub phases: Vec<Phase>,
    modules: Vec<Module>,
    pub frames: Vec<FrameRange>,
    pub runs: Vec<Run>,
    pub nodes: Vec<u16>,
    pub weights: Vec<Weight>,
    names: Vec<u8>,
}

/// A rule that recognises nothing yet, with every bound open.
pub(crate) fn open_rule() -> Rule {
    Rule {
        module: NONE,
        thread: NONE,
        order: [0, NONE],
        turn: [0, 1],
        size_bounds_bytes: [0, u64::MAX],
        ..Rule::zeroed()
    }
}

/// A header without tables.
pub(crate) fn empty_header() -> Header {
    Header {
        magic: MAGIC,
        ..Header::zeroed()
    }
}

/// A run of pages in units of the target's page.
pub(crate) fn run(first_page: u64, pages: u64, node: NodeId) -> Run {
    Run {
        first_page,
        pages: u32::try_from(pages).unwrap_or(u32::MAX),
        node: node.0.into(),
    }
}

fn append<T>(table: &mut Vec<T>, entries: impl IntoIterator<Item = T>) -> Part {
    let first = table.len();
    table.extend(entries);
    // A table beyond 32 bits is refused by `encode`.
    [first as u32, (table.len() - first) as u32]
}

impl Tables {
    /// Index of a module: found by build-id (hexadecimal) if it has one of at most 32 bytes, otherwise by file name.
    pub fn module(&mut self, build_id: &str, file_name: &str) -> u32 {
        let id = decode_hex(build_id)
            .filter(|id| id.len() <= 32)
            .unwrap_or_default();
        let known = self.modules.iter().position(|module| {
            let [at, length] = module.name.map(|word| word as usize);
            module.build_id[..module.build_id_bytes as usize] == id
                && self.names[at..at + length] == *bytes_of_text(file_name)
        });
        if let Some(index) = known {
            return index as u32;
        }
        let mut module = Module {
            build_id_bytes: id.len() as u32,
            ..Module::zeroed()
        };
        module.build_id[..id.len()].copy_from_slice(&id);
        module.name = append(&mut self.names, bytes_of_text(file_name).iter().copied());
        self.modules.push(module);
        self.modules.len() as u32 - 1
    }

    /// True if the plan's module `index` is the module `name`: by build-id if the plan has one, otherwise by file name.
    pub fn is_module(&self, index: u32, name: ModuleName<'_>) -> bool {
        let Some(module) = self.modules.get(index as usize) else {
            return false;
        };
        match &module.build_id[..module.build_id_bytes as usize] {
            [] => part(&self.names, module.name) == Some(&*bytes_of_text(name.file_name)),
            build_id => {
                let text = name.build_id.as_bytes();
                let digit = |digit: u8| char::from(digit).to_digit(16);
                text.len() == 2 * build_id.len()
                    && build_id.iter().zip(text.chunks(2)).all(|(byte, text)| {
                        digit(text[0]) == Some(u32::from(byte >> 4))
                            && digit(text[1]) == Some(u32::from(byte & 15))
                    })
            }
        }
    }

    /// Appends the frames of a call site.
    pub fn add_frames(&mut self, frames: impl IntoIterator<Item = (u32, u64, u64)>) -> Part {
        let frame = |(module, low, high)| FrameRange {
            module,
            low,
            high,
            ..FrameRange::zeroed()
        };
        append(&mut self.frames, frames.into_iter().map(frame))
    }

    pub fn add_nodes(&mut self, nodes: impl IntoIterator<Item = NodeId>) -> Part {
        append(&mut self.nodes, nodes.into_iter().map(|node| node.0))
    }

    pub fn add_runs(&mut self, runs: Vec<Run>) -> Part {
        append(&mut self.runs, runs)
    }

    pub fn add_weights(&mut self, weights: &[(NodeId, u32)]) -> Part {
        let weight = |&(node, pages): &(NodeId, u32)| Weight {
            node: node.0.into(),
            pages,
        };
        append(&mut self.weights, weights.iter().map(weight))
    }

    /// Appends the pin of thread `index`.
    pub fn pin(&mut self, module: u32, offset: u64, index: usize, cpu: u32) {
        let index = u32::try_from(index).unwrap_or(NONE);
        self.pins.push(Pin {
            module,
            index,
            offset,
            cpu,
            ..Pin::zeroed()
        });
    }

    /// Appends the rules of a section or a phase.
    pub fn add_rules(&mut self, rules: Vec<Rule>) -> Part {
        append(&mut self.rules, rules)
    }

    /// Appends a phase that begins with the function at `offset`.
    pub fn phase(&mut self, module: u32, offset: u64, rules: Part, pins: Part) {
        self.phases.push(Phase {
            module,
            offset,
            rules,
            pins,
            ..Phase::zeroed()
        });
    }

    /// The whole file.
    pub fn encode(&self, header: Header) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; size_of::<Header>()];
        let header = Header {
            sections: table(&mut bytes, &self.sections, "sections")?,
            modules: table(&mut bytes, &self.modules, "modules")?,
            rules: table(&mut bytes, &self.rules, "rules")?,
            frames: table(&mut bytes, &self.frames, "frames")?,
            runs: table(&mut bytes, &self.runs, "runs")?,
            nodes: table(&mut bytes, &self.nodes, "nodes")?,
            weights: table(&mut bytes, &self.weights, "weights")?,
            pins: table(&mut bytes, &self.pins, "pins")?,
            names: table(&mut bytes, &self.names, "names")?,
            phases: table(&mut bytes, &self.phases, "phases")?,
            ..header
        };
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes[..size_of::<Header>()].copy_from_slice(Plain::bytes(&[header]));
        Ok(bytes)
    }
}

fn table<T: Plain>(bytes: &mut Vec<u8>, entries: &[T], what: &'static str) -> Result<Table, Error> {
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let table = match (
        u32::try_from(bytes.len()),
        u32::try_from(size_of_val(entries)),
    ) {
        (Ok(offset), Ok(_)) => Table {
            offset,
            count: entries.len() as u32,
        },
        _ => return Err(Error::TooLarge { what }),
    };
    bytes.extend_from_slice(T::bytes(entries));
    Ok(table)
}

fn decode_hex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok())
        .collect()
}
