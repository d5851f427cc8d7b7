//! Initial files of the guest: a busybox, the kernel modules for mounting this machine's files, and a script.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nearpage_wire::trace::{BEGIN_MARK, BOOTED_MARK, END_MARK};

use super::emulator::LabParts;
use super::error::LabError;
use crate::error::{Error, IoContext};

/// Kernel modules in loading order. A missing module is built into the kernel, or part of another module.
const MODULES: [&str; 10] = [
    "virtio_ring",
    "virtio",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "netfs",
    "fscache",
    "9pnet",
    "9pnet_virtio",
    "9p",
];
/// Folders below the kernel's folder of modules.
const MODULE_FOLDERS: [&str; 5] = [
    "kernel/drivers/virtio",
    "kernel/fs/netfs",
    "kernel/fs/fscache",
    "kernel/fs/9p",
    "kernel/net/9p",
];

/// First process of the guest. It mounts this machine's files read-only, and runs the work folder's script.
const INIT: &str = include_str!("init");

/// An archive in cpio's format `newc`, which the kernel unpacks.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    fn add(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let fields = [
            self.entries,
            mode,
            0,
            0,
            1,
            0,
            content.len() as u32,
            0,
            0,
            0,
            0,
            name.len() as u32 + 1,
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

/// An ELF program that executes a mark and exits.
fn mark(mark: &[u8]) -> Vec<u8> {
    const ADDRESS: u64 = 0x40_0000;
    const HEAD: u64 = 64 + 56;
    // After the mark: xor edi, edi; mov eax, 60 (exit); syscall.
    let code = [mark, &[0x31, 0xff, 0xb8, 60, 0, 0, 0, 0x0f, 0x05]].concat();
    let bytes = HEAD + code.len() as u64;
    // An x86-64 executable, ELF version 1, with one program header after this header and no sections.
    let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0".to_vec();
    for word in [ADDRESS + HEAD, 64, 0] {
        elf.extend_from_slice(&word.to_le_bytes());
    }
    elf.extend_from_slice(b"\0\0\0\0\x40\0\x38\0\x01\0\0\0\0\0\0\0");
    // Program header: loaded, readable and executable.
    elf.extend_from_slice(b"\x01\0\0\0\x05\0\0\0");
    for word in [0, ADDRESS, ADDRESS, bytes, bytes, 4096] {
        elf.extend_from_slice(&word.to_le_bytes());
    }
    elf.extend_from_slice(&code);
    elf
}

/// Writes the archive.
pub(super) fn write(parts: &LabParts, path: &Path) -> Result<(), Error> {
    let mut archive = Archive::default();
    for folder in ["bin", "modules", "host", "proc"] {
        archive.add(folder, FOLDER, &[]);
    }
    let busybox = fs::read(&parts.busybox).at(&parts.busybox, "can't be read")?;
    archive.add("bin/busybox", PROGRAM, &busybox);
    archive.add("bin/nearpage-booted", PROGRAM, &mark(&BOOTED_MARK));
    archive.add("bin/nearpage-begin", PROGRAM, &mark(&BEGIN_MARK));
    archive.add("bin/nearpage-end", PROGRAM, &mark(&END_MARK));
    archive.add("init", PROGRAM, INIT.as_bytes());
    let mut order = String::new();
    for name in MODULES {
        if let Some(module) = find(&parts.modules, name) {
            archive.add(
                &format!("modules/{name}.ko"),
                0o100_644,
                &unpacked(&module)?,
            );
            order += &format!("{name}\n");
        }
    }
    archive.add("modules/order", 0o100_644, order.as_bytes());
    fs::write(path, archive.finish()).at(path, "can't be written")
}

fn find(modules: &Path, name: &str) -> Option<PathBuf> {
    let folders = MODULE_FOLDERS.iter().map(|folder| modules.join(folder));
    let mut candidates = folders.flat_map(|folder| {
        ["ko", "ko.xz", "ko.zst", "ko.gz"].map(|ending| folder.join(format!("{name}.{ending}")))
    });
    candidates.find(|path| path.is_file())
}

fn unpacked(module: &Path) -> Result<Vec<u8>, Error> {
    let ending = module.extension().unwrap_or_default().to_string_lossy();
    let tool = match &*ending {
        "xz" => "xz",
        "zst" => "zstd",
        "gz" => "gzip",
        _ => return fs::read(module).at(module, "can't be read"),
    };
    let output = Command::new(tool).arg("-dc").arg(module).output();
    match output {
        Ok(output) if output.status.success() => Ok(output.stdout),
        _ => Err(LabError::Module {
            module: module.to_owned(),
            tool,
        }
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn marks_are_programs_that_end() {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in [("begin", BEGIN_MARK), ("end", END_MARK)] {
            let path = folder.path().join(name);
            fs::write(&path, mark(&bytes)).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            assert!(Command::new(&path).status().unwrap().success(), "{name}");
        }
    }

    #[test]
    fn an_archive_is_as_cpio_reads_it() {
        let mut archive = Archive::default();
        archive.add("bin", FOLDER, &[]);
        archive.add("bin/a", PROGRAM, b"hello");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        assert!(bytes.starts_with(b"070701"));
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(text.matches("070701").count(), 3);
        assert!(
            text.contains("bin/a\0") && text.contains("hello\0\0\0"),
            "{text}"
        );
    }
}
