//! Facts from a module's ELF file: build-id, load segments, data symbols and functions.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nearpage_elf::Contents;
pub use nearpage_elf::demangle;
use object::read::elf::ProgramHeader as _;
use object::{
    Object, ObjectSection, ObjectSegment, ObjectSymbol, SectionKind, SegmentFlags, SymbolKind,
    SymbolSection,
};

use crate::Error;
use crate::error::IoContext;

/// An ELF file. Its contents are read as they are needed.
#[derive(Debug)]
pub struct ElfFile {
    path: PathBuf,
    contents: Contents,
}

/// A segment that is loaded into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadSegment {
    /// Virtual address as the file states it, without load bias.
    pub address: u64,
    /// Bytes in memory.
    pub size_bytes: u64,
    /// Offset in the file.
    pub file_offset: u64,
    /// Bytes in the file.
    pub file_bytes: u64,
    /// Whether the segment may be executed.
    pub executable: bool,
    /// Whether the segment may be written.
    pub writable: bool,
}

/// A named piece of a module's memory: a data symbol, a function, or a section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Name as in the file (mangled).
    pub name: String,
    /// Virtual address as the file states it, without load bias.
    pub address: u64,
    /// Size in bytes; 0 if the file does not state it.
    pub size_bytes: u64,
}

impl ElfFile {
    /// Opens `path`.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Damaged`] if the file is no ELF file.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let elf = Self {
            path: path.to_owned(),
            contents: Contents::open(path).at(path, "open")?,
        };
        object::File::parse(&elf.contents)
            .map_err(|cause| Error::damaged(path, format!("not an ELF file: {cause}")))?;
        Ok(elf)
    }

    fn parsed(&self) -> Option<object::File<'_, &Contents>> {
        object::File::parse(&self.contents).ok()
    }

    /// Path from which the file was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// GNU build-id, lower-case hexadecimal; empty where there is none.
    pub fn build_id(&self) -> String {
        hexadecimal(&self.build_id_bytes())
    }

    /// GNU build-id; empty where there is none.
    pub fn build_id_bytes(&self) -> Vec<u8> {
        let build_id = self
            .parsed()
            .and_then(|file| Some(file.build_id().ok()??.to_vec()));
        build_id.unwrap_or_default()
    }

    /// Name of the sanitizer that the program is built with.
    pub fn sanitizer(&self) -> Option<&'static str> {
        let file = self.parsed()?;
        let strings = file.section_by_name(".dynstr")?;
        nearpage_wire::sanitizer::named_in(strings.data().ok()?)
    }

    /// Whether the file is for the processor architecture that nearpage runs on.
    pub fn is_for_this_processor(&self) -> bool {
        let own = match cfg!(target_arch = "aarch64") {
            true => object::Architecture::Aarch64,
            false => object::Architecture::X86_64,
        };
        self.parsed().is_some_and(|file| file.architecture() == own)
    }

    /// Whether the file is for x86-64 processors.
    pub fn is_for_x86_64(&self) -> bool {
        self.parsed()
            .is_some_and(|file| file.architecture() == object::Architecture::X86_64)
    }

    /// Bytes that the file loads at these virtual addresses; `None` if one segment of the file does not hold them all.
    pub fn bytes(&self, address: u64, size_bytes: u64) -> Option<Vec<u8>> {
        let file = self.parsed()?;
        file.segments().find_map(|segment| {
            let found = segment.data_range(address, size_bytes).ok()??;
            (found.len() as u64 == size_bytes).then(|| found.to_vec())
        })
    }

    /// Whether the program starts without a dynamic loader, so that no library can be preloaded.
    pub fn is_static(&self) -> bool {
        let Ok(object::File::Elf64(file)) = object::File::parse(&self.contents) else {
            return false;
        };
        let headers = file.elf_program_headers().iter();
        !headers
            .map(|header| header.p_type(file.endian()))
            .any(|kind| kind == object::elf::PT_INTERP)
    }

    /// Name of the file with its debug information, from `.gnu_debuglink`.
    pub fn debug_link(&self) -> Option<PathBuf> {
        let file = self.parsed()?;
        let (name, _) = file.gnu_debuglink().ok()??;
        Some(OsStr::from_bytes(name).into())
    }

    /// Whether the file itself has DWARF debug information.
    pub fn has_debug_information(&self) -> bool {
        self.parsed()
            .is_some_and(|file| file.section_by_name(".debug_info").is_some())
    }

    /// Segments that are loaded, in the file's order.
    pub fn segments(&self) -> Vec<LoadSegment> {
        let segment = |segment: object::Segment<'_, '_, &Contents>| {
            let (file_offset, file_bytes) = segment.file_range();
            let permissions = segment.permissions();
            let SegmentFlags::Elf { .. } = segment.flags() else {
                return None;
            };
            Some(LoadSegment {
                address: segment.address(),
                size_bytes: segment.size(),
                file_offset,
                file_bytes,
                executable: permissions.executable(),
                writable: permissions.writable(),
            })
        };
        self.parsed()
            .map(|file| file.segments().filter_map(segment).collect())
            .unwrap_or_default()
    }

    /// Load bias of a mapping of this file: mapped address − virtual address (wrapping). `None`
    /// where no segment lies at `file_offset`.
    pub fn bias(
        &self,
        address: u64,
        file_offset: u64,
        executable: bool,
        page_bytes: u64,
    ) -> Option<u64> {
        let page = !(page_bytes.max(1) - 1);
        let segments = self.segments();
        let covers = |segment: &&LoadSegment| {
            let end = segment.file_offset.saturating_add(segment.file_bytes);
            (segment.file_offset & page..end).contains(&file_offset)
        };
        // Segments may share a page of the file: permissions tell them apart.
        let segment = segments.iter().filter(covers).max_by_key(|segment| {
            (
                segment.executable == executable,
                segment.file_offset & page == file_offset,
            )
        })?;
        let virtual_address = segment
            .address
            .wrapping_add(file_offset.wrapping_sub(segment.file_offset));
        Some(address.wrapping_sub(virtual_address))
    }

    /// Sections that are loaded and hold data (no code, no thread-local templates).
    pub fn data_sections(&self) -> Vec<Symbol> {
        let section = |section: object::Section<'_, '_, &Contents>| {
            let holds_data = !matches!(
                section.kind(),
                SectionKind::Text | SectionKind::Tls | SectionKind::UninitializedTls
            );
            (section.address() != 0 && section.size() != 0 && holds_data).then(|| Symbol {
                name: section.name().unwrap_or_default().to_owned(),
                address: section.address(),
                size_bytes: section.size(),
            })
        };
        self.parsed()
            .map(|file| file.sections().filter_map(section).collect())
            .unwrap_or_default()
    }

    /// Data symbols with a size, one per address, by address. Among several symbols at one address, the largest is
    /// kept, then global before local, then the first in the alphabet.
    pub fn data_symbols(&self) -> Vec<Symbol> {
        self.symbols(|kind, size| {
            matches!(kind, SymbolKind::Data | SymbolKind::Unknown) && size != 0
        })
    }

    /// Functions, one per address, by address; chosen as in [`Self::data_symbols`].
    pub fn functions(&self) -> Vec<Symbol> {
        self.symbols(|kind, _| matches!(kind, SymbolKind::Text))
    }

    fn symbols(&self, wanted: impl Fn(SymbolKind, u64) -> bool) -> Vec<Symbol> {
        let Some(file) = self.parsed() else {
            return Vec::new();
        };
        let mut found: Vec<(Symbol, bool)> = file
            .symbols()
            .chain(file.dynamic_symbols())
            .filter(|symbol| wanted(symbol.kind(), symbol.size()))
            .filter(|symbol| matches!(symbol.section(), SymbolSection::Section(_)))
            .filter_map(|symbol| {
                let name = symbol
                    .name()
                    .ok()
                    .filter(|name| !name.is_empty())?
                    .to_owned();
                let found = Symbol {
                    name,
                    address: symbol.address(),
                    size_bytes: symbol.size(),
                };
                Some((found, symbol.is_local()))
            })
            .collect();
        found.sort_unstable_by(|(left, left_local), (right, right_local)| {
            let key = |symbol: &Symbol, local: bool| {
                (symbol.address, u64::MAX - symbol.size_bytes, local)
            };
            key(left, *left_local)
                .cmp(&key(right, *right_local))
                .then_with(|| left.name.cmp(&right.name))
        });
        found.dedup_by_key(|(symbol, _)| symbol.address);
        found.into_iter().map(|(symbol, _)| symbol).collect()
    }
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
