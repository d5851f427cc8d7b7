//! Code of ELF files by file offset, and the beginnings of functions.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;

use nearpage_elf::Contents;
use object::{
    Object, ObjectSection, ObjectSegment, ObjectSymbol, ReadRef, SegmentFlags, SymbolKind,
};
use rustc_hash::FxHashMap;

use crate::architecture::Decoder;
use crate::flow::Flow;
use crate::instruction::{Code, Decode};

/// Code around one or more samples, with its control flow, independent of its place in memory.
#[derive(Debug)]
pub(crate) struct Stretch {
    /// File offset or address of the first byte.
    pub begin: u64,
    pub bytes: Vec<u8>,
    pub flow: Flow,
}

/// Bytes that are decoded before the sampled instruction if no function's beginning is known.
pub(crate) const BEFORE_BYTES: u64 = 192;
/// Bytes that are decoded after the sampled instruction in this case.
pub(crate) const AFTER_BYTES: u64 = 1024;
/// Largest distance from a function's beginning to the sample at which the function is decoded as a whole.
const FUNCTION_BYTES_MAX: u64 = 128 << 10;

impl Stretch {
    /// A stretch that begins with an instruction.
    fn known(begin: u64, bytes: Vec<u8>, bitness: u32) -> Self {
        let flow = Decoder::sweep(
            Code {
                address: begin,
                bytes: &bytes,
                bitness,
            },
            0,
        );
        Self { begin, bytes, flow }
    }

    /// A stretch whose instructions are aligned to the one at `at`; `None` if that fails.
    pub fn around(begin: u64, bytes: Vec<u8>, at: u64, bitness: u32) -> Option<Self> {
        let code = Code {
            address: begin,
            bytes: &bytes,
            bitness,
        };
        let at = usize::try_from(at.checked_sub(begin)?).ok()?;
        let first = Decoder::converge(code, at)?;
        let flow = Decoder::sweep(code, first);
        Some(Self { begin, bytes, flow })
    }

    fn contains(&self, offset: u64) -> bool {
        offset
            .checked_sub(self.begin)
            .is_some_and(|at| at < self.bytes.len() as u64)
    }
}

/// An executable file.
#[derive(Debug)]
pub(crate) struct Image {
    file: File,
    /// GNU build-id; empty if there is none.
    pub build_id: Vec<u8>,
    /// Executable segments as file offsets.
    text: Vec<Range<u64>>,
    /// Beginnings of functions as file offsets, ascending.
    functions: Vec<u64>,
    bitness: u32,
    stretches: FxHashMap<u64, Rc<Stretch>>,
}

impl Image {
    /// Opens an ELF file; `None` if the file cannot be read or is no ELF file.
    pub fn open(path: &Path) -> Option<Self> {
        let contents = Contents::open(path).ok()?;
        let elf = object::File::parse(&contents).ok()?;
        let loaded: Vec<(Range<u64>, u64, bool)> = elf
            .segments()
            .map(|segment| {
                let (offset, size) = segment.file_range();
                let executable =
                    matches!(segment.flags(), SegmentFlags::Elf { p_flags, .. } if p_flags.0 & object::elf::PF_X.0 != 0);
                (offset..offset.saturating_add(size), segment.address(), executable)
            })
            .collect();
        let text: Vec<_> = loaded
            .iter()
            .filter(|segment| segment.2)
            .map(|segment| segment.0.clone())
            .collect();
        let to_offset = |address: u64| {
            let segment = loaded.iter().find(|(range, begin, _)| {
                address
                    .checked_sub(*begin)
                    .is_some_and(|offset| offset < range.end - range.start)
            })?;
            Some(segment.0.start + (address - segment.1))
        };
        let symbols = elf.symbols().chain(elf.dynamic_symbols());
        let symbols =
            symbols.filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition());
        let unwound = elf.section_by_name(".eh_frame_hdr");
        let unwound =
            unwound.and_then(|section| Some(unwind_table(section.data().ok()?, section.address())));
        let addresses = symbols
            .map(|symbol| symbol.address())
            .chain(unwound.into_iter().flatten());
        let mut functions: Vec<u64> = addresses.filter_map(to_offset).collect();
        functions.sort_unstable();
        functions.dedup();
        let build_id = elf.build_id().ok().flatten().unwrap_or_default().to_vec();
        let bitness = if elf.is_64() { 64 } else { 32 };
        Some(Self {
            file: contents.file().try_clone().ok()?,
            build_id,
            text,
            functions,
            bitness,
            stretches: FxHashMap::default(),
        })
    }

    /// The code around file offset `at`; `None` outside executable segments.
    pub fn stretch(&mut self, at: u64) -> Option<Rc<Stretch>> {
        let text = self.text.iter().find(|text| text.contains(&at))?.clone();
        let next = self.functions.partition_point(|begin| *begin <= at);
        let begin = next
            .checked_sub(1)
            .map(|n| self.functions[n])
            .filter(|begin| text.contains(begin));
        let end = self
            .functions
            .get(next)
            .map_or(text.end, |end| text.end.min(*end));
        let end = end.min(at.saturating_add(FUNCTION_BYTES_MAX));
        if let Some(begin) = begin.filter(|begin| at - begin <= FUNCTION_BYTES_MAX) {
            if let Some(stretch) = self
                .stretches
                .get(&begin)
                .filter(|stretch| stretch.contains(at))
            {
                return stretch
                    .flow
                    .index((at - begin) as usize)
                    .map(|_| Rc::clone(stretch))
                    .or_else(|| self.around(at, &text));
            }
            let stretch = Rc::new(Stretch::known(begin, self.read(begin..end)?, self.bitness));
            self.stretches.insert(begin, Rc::clone(&stretch));
            if stretch.flow.index((at - begin) as usize).is_some() {
                return Some(stretch);
            }
            // Data lies between the code, or the symbol is no function, so the boundaries must be found from the
            // sample.
        }
        self.around(at, &text)
    }

    fn around(&self, at: u64, text: &Range<u64>) -> Option<Rc<Stretch>> {
        let begin = text.start.max(at.saturating_sub(BEFORE_BYTES));
        let bytes = self.read(begin..text.end.min(at.saturating_add(AFTER_BYTES)))?;
        Stretch::around(begin, bytes, at, self.bitness).map(Rc::new)
    }

    fn read(&self, range: Range<u64>) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(range.end.checked_sub(range.start)?).ok()?];
        self.file.read_exact_at(&mut bytes, range.start).ok()?;
        Some(bytes)
    }
}

/// Addresses of functions in `.eh_frame_hdr` (Linux Standard Base, "Exception Frames"), which stripped files have,
/// too. Empty for encodings that no linker writes.
fn unwind_table(data: &[u8], address: u64) -> Vec<u64> {
    const PCREL_SDATA4: u8 = 0x1b;
    const UDATA4: u8 = 0x03;
    const DATAREL_SDATA4: u8 = 0x3b;
    let Ok(&[1, PCREL_SDATA4, UDATA4, DATAREL_SDATA4]) = data.read_at::<[u8; 4]>(0) else {
        return Vec::new();
    };
    let entries = data.get(12..).unwrap_or_default().chunks_exact(8);
    let begin = |entry: &[u8]| i32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
    entries
        .map(|entry| address.wrapping_add_signed(begin(entry).into()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_this_test_program() {
        let mut image = Image::open(Path::new("/proc/self/exe")).unwrap();
        assert!(image.functions.len() > 100);
        let text = image.text[0].clone();
        let inside: Vec<u64> = image
            .functions
            .iter()
            .copied()
            .filter(|at| text.contains(at))
            .collect();
        for at in inside.iter().step_by(inside.len() / 50) {
            let stretch = image.stretch(*at).unwrap();
            assert!(stretch.flow.index((at - stretch.begin) as usize).is_some());
        }
    }

    #[test]
    fn a_segment_at_the_end_of_all_offsets_has_no_code() {
        let mut image = Image::open(Path::new("/proc/self/exe")).unwrap();
        image.text = std::iter::once(0..u64::MAX).collect();
        for functions in [vec![], vec![u64::MAX - 9]] {
            image.functions = functions;
            assert!(image.stretch(u64::MAX - 1).is_none());
        }
    }

    #[test]
    fn files_that_are_no_program_have_no_image() {
        assert!(Image::open(Path::new("/proc/self/maps")).is_none());
        assert!(Image::open(Path::new("/nonexistent")).is_none());
        assert!(unwind_table(&[1, 2, 3], 0).is_empty());
        assert!(unwind_table(&[], 0).is_empty());
    }
}
