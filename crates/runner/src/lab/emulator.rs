//! Finds the emulator with modelled time, its firmware, a kernel with modules, and a busybox.

use std::env;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::error::LabError;

/// Overrides the folder of the emulator.
const FOLDER_VARIABLE: &str = "NEARPAGE_LAB";
const EMULATOR: &str = "qemu-system-x86_64";
/// Folders of firmware in Debian's packages.
const FIRMWARE: [&str; 2] = ["/usr/share/seabios", "/usr/share/qemu"];
const FIRMWARE_FILES: [&str; 3] = ["bios-256k.bin", "linuxboot_dma.bin", "kvmvapic.bin"];
/// Offsets of the setup header's name and entry point flags in a Linux image for x86 (Documentation/arch/x86/boot.rst).
const KERNEL_NAME_AT: usize = 0x202;
const KERNEL_NAME: &[u8] = b"HdrS";
const KERNEL_FLAGS_AT: usize = 0x236;
/// Flag: the kernel has a 64-bit entry point.
const KERNEL_64: u8 = 1;

/// Files of this machine that the lab uses.
#[derive(Clone, Debug)]
pub struct LabParts {
    /// The emulator.
    pub emulator: PathBuf,
    /// A static busybox.
    pub busybox: PathBuf,
    /// The kernel's image.
    pub kernel: PathBuf,
    /// Folder of the kernel's modules.
    pub modules: PathBuf,
}

impl LabParts {
    /// Finds the emulator and its files. `kernel` is the image to boot; by default the newest in /boot, or the tests'
    /// kernel.
    ///
    /// # Errors
    /// The first missing file, and how to get it.
    pub fn find(kernel: Option<&Path>) -> Result<Self, LabError> {
        let folders = folders();
        let mut candidates = folders.iter().map(|folder| folder.join(EMULATOR));
        let emulator = candidates.find(|path| path.is_file());
        let emulator = emulator.ok_or_else(|| LabError::NoEmulator(folders.clone()))?;
        for file in FIRMWARE_FILES {
            let found = FIRMWARE
                .iter()
                .any(|folder| Path::new(folder).join(file).exists());
            if !found {
                return Err(LabError::NoFirmware(file));
            }
        }
        let of_tests = emulator.parent().and_then(Path::parent);
        let of_tests = of_tests.unwrap_or(Path::new("/")).join("guest/kernel/boot");
        let (kernel, modules) = match kernel {
            Some(kernel) => (kernel.to_owned(), modules(kernel)?),
            None => newest_kernel(&[Path::new("/boot"), &of_tests])?,
        };
        check_kernel(&kernel)?;
        Ok(Self {
            emulator,
            busybox: busybox().ok_or(LabError::NoBusybox)?,
            kernel,
            modules,
        })
    }
}

/// Folders of firmware, for the emulator's `-L`.
pub(super) fn firmware() -> [&'static str; 2] {
    FIRMWARE
}

/// Folders that may contain the emulator.
fn folders() -> Vec<PathBuf> {
    if let Some(folder) = env::var_os(FOLDER_VARIABLE) {
        return vec![folder.into()];
    }
    let mut folders = Vec::new();
    // Beside the folder of the executable, such as target/lab for target/debug/nearpage.
    if let Ok(executable) = env::current_exe()
        && let Some(target) = executable.parent().and_then(Path::parent)
    {
        folders.push(target.join("lab"));
        folders.push(target.join("lib/nearpage/lab"));
    }
    folders.extend(cache_folder());
    folders
}

pub(super) fn cache_folder() -> Option<PathBuf> {
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || Some(Path::new(&env::var_os("HOME")?).join(".cache"));
    Some(cache.or_else(home)?.join("nearpage/lab"))
}

/// The newest kernel that has modules, from the first folder with such a kernel. Versions are compared number by
/// number.
fn newest_kernel(folders: &[&Path]) -> Result<(PathBuf, PathBuf), LabError> {
    let newest = folders.iter().find_map(|folder| {
        let entries = fs::read_dir(folder).ok()?;
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let with_modules = paths.filter_map(|path| Some((modules(&path).ok()?, path)));
        with_modules.max_by_key(|(_, path)| version(&path.to_string_lossy()))
    });
    let (modules, kernel) = newest.ok_or_else(|| {
        LabError::NoKernel(folders.iter().map(|folder| folder.to_path_buf()).collect())
    })?;
    Ok((kernel, modules))
}

fn version(name: &str) -> Vec<u64> {
    let name = name.rsplit("vmlinuz-").next().unwrap_or(name);
    let numbers = name.split(|letter: char| !letter.is_ascii_digit());
    numbers.filter_map(|number| number.parse().ok()).collect()
}

/// Folder of a kernel's modules: `…/lib/modules/VERSION` or `…/usr/lib/modules/VERSION` belongs to
/// `…/boot/vmlinuz-VERSION`. Newer packages of Debian and Fedora have `vmlinuz` in the modules' folder itself.
fn modules(kernel: &Path) -> Result<PathBuf, LabError> {
    if !kernel.is_file() {
        return Err(LabError::NoSuchKernel(kernel.to_owned()));
    }
    let beside = modules_beside(kernel);
    // `/vmlinuz` is a link to the newest kernel.
    let of_target = kernel
        .canonicalize()
        .map(|target| modules_beside(&target))
        .into_iter()
        .flatten();
    let mut folders = beside.iter().cloned().chain(of_target);
    folders
        .find(|folder| folder.is_dir())
        .ok_or_else(|| LabError::NoModules {
            kernel: kernel.to_owned(),
            modules: beside[0].clone(),
        })
}

/// Folders that may have a kernel's modules: at least one.
fn modules_beside(kernel: &Path) -> Vec<PathBuf> {
    let folder = kernel.parent().unwrap_or(Path::new("/"));
    let above = folder.parent().unwrap_or(Path::new("/"));
    if above.ends_with("lib/modules") {
        return vec![folder.to_owned()];
    }
    let name = kernel.file_name().unwrap_or_default().to_string_lossy();
    let version = name.strip_prefix("vmlinuz-").unwrap_or(&name);
    let folders = ["lib/modules", "usr/lib/modules"];
    folders
        .map(|modules| above.join(modules).join(version))
        .into()
}

/// Checks that the emulator can boot the kernel.
fn check_kernel(kernel: &Path) -> Result<(), LabError> {
    let mut head = Vec::new();
    let read = fs::File::open(kernel)
        .and_then(|file| file.take(KERNEL_FLAGS_AT as u64 + 1).read_to_end(&mut head));
    read.map_err(|source| LabError::Unreadable {
        path: kernel.to_owned(),
        source,
    })?;
    let is_linux = head
        .get(KERNEL_NAME_AT..)
        .is_some_and(|at| at.starts_with(KERNEL_NAME));
    let flags = head.get(KERNEL_FLAGS_AT).copied().unwrap_or(0);
    match is_linux && flags & KERNEL_64 != 0 {
        true => Ok(()),
        false => Err(LabError::OtherKernel(kernel.to_owned())),
    }
}

fn busybox() -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let mut candidates = env::split_paths(&path).map(|folder| folder.join("busybox"));
    candidates.find(|path| is_static(path))
}

/// Is the program static? The file of a dynamic program names its loader near the start.
fn is_static(path: &Path) -> bool {
    fs::read(path).is_ok_and(|bytes| {
        let head = bytes.get(..4096).unwrap_or(&bytes);
        !head.windows(8).any(|window| window == b"ld-linux")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_kernel_with_modules_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        for (version, complete) in [
            ("6.9.1-amd64", true),
            ("6.12.0-amd64", true),
            ("7.0.0", false),
        ] {
            fs::create_dir_all(folder.path().join("boot")).unwrap();
            fs::write(
                folder
                    .path()
                    .join("boot")
                    .join(format!("vmlinuz-{version}")),
                "",
            )
            .unwrap();
            if complete {
                fs::create_dir_all(folder.path().join("lib/modules").join(version)).unwrap();
            }
        }
        let boot = folder.path().join("boot");
        let (newest, modules_of_newest) =
            newest_kernel(&[Path::new("/no/such/folder"), &boot]).unwrap();
        assert_eq!(newest, boot.join("vmlinuz-6.12.0-amd64"));
        assert!(modules_of_newest.ends_with("lib/modules/6.12.0-amd64"));
        let error = modules(&boot.join("vmlinuz-7.0.0")).unwrap_err();
        assert!(error.to_string().contains("lib/modules/7.0.0,"), "{error}");
        assert!(matches!(
            modules(&boot.join("vmlinuz-1.0")),
            Err(LabError::NoSuchKernel(_))
        ));
    }

    #[test]
    fn modules_are_found_where_newer_packages_have_them() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("usr/lib/modules/7.2.13+deb14-amd64");
        fs::create_dir_all(&own).unwrap();
        fs::create_dir_all(folder.path().join("boot")).unwrap();
        let inside = own.join("vmlinuz");
        let in_boot = folder.path().join("boot/vmlinuz-7.2.13+deb14-amd64");
        let link = folder.path().join("vmlinuz");
        for kernel in [&inside, &in_boot] {
            fs::write(kernel, "").unwrap();
        }
        std::os::unix::fs::symlink("boot/vmlinuz-7.2.13+deb14-amd64", &link).unwrap();
        for kernel in [inside, in_boot, link] {
            let found = modules(&kernel).unwrap();
            assert_eq!(found.canonicalize().unwrap(), own.canonicalize().unwrap());
        }
    }

    #[test]
    fn without_a_kernel_the_message_says_where_to_get_one() {
        let folder = tempfile::tempdir().unwrap();
        let error = newest_kernel(&[Path::new("/no/such/folder"), folder.path()]).unwrap_err();
        let error = error.to_string();
        for word in [
            "/no/such/folder or ",
            "linux-image-amd64",
            "dpkg-deb -x",
            "--kernel",
        ] {
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn kernels_of_other_machines_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let kernel = folder.path().join("vmlinuz");
        let mut image = vec![0; 4096];
        let check = |image: &[u8]| {
            fs::write(&kernel, image).unwrap();
            check_kernel(&kernel).is_ok()
        };
        assert!(!check(b"no kernel"));
        // First bytes of Linux for 64-bit ARM.
        image[56..60].copy_from_slice(b"ARM\x64");
        assert!(!check(&image));
        image[KERNEL_NAME_AT..][..4].copy_from_slice(KERNEL_NAME);
        assert!(!check(&image), "for 32 bits alone");
        image[KERNEL_FLAGS_AT] = 0x3f;
        assert!(check(&image));
    }
}
