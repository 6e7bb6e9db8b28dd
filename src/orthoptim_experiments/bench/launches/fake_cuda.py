"""Fake CUDA tensors on a build of torch without CUDA.

Fake tensors have a shape, strides and a device but no memory. A build without CUDA has no device guard for it, so that
indexing or copying a fake CUDA tensor raises. A guard that does nothing is compiled (a second, once) and registered.
"""

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

_GUARD = r"""
#include <c10/core/impl/DeviceGuardImplInterface.h>
namespace {
using c10::Device;
using c10::Stream;
const Device device(c10::DeviceType::CUDA, 0);
struct Guard : public c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  Device exchangeDevice(Device) const override { return device; }
  Device getDevice() const override { return device; }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device d) const override { return Stream(Stream::DEFAULT, d); }
  Stream getNewStream(Device d, int) const override { return Stream(Stream::DEFAULT, d); }
  Stream exchangeStream(Stream s) const override { return s; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};
struct Register {
  Register() {
    static Guard guard;
    c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::CUDA)].store(&guard);
  }
} registered;
}  // namespace
"""

_registered = False


class NoCompilerError(ValueError):
    """There is no C++ compiler to make the device guard with."""


@contextmanager
def fake_cuda() -> Iterator[None]:
    """A context in which tensors made on ``"cuda"`` are fake.

    Raises:
        NoCompilerError: where torch has no CUDA and there is no C++ compiler.
    """
    _register_guard()
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


def _register_guard() -> None:
    global _registered
    if _registered or torch.version.cuda or torch.version.hip:
        return
    ctypes.CDLL(str(_compiled_guard()))
    _registered = True


def _compiled_guard() -> Path:
    """The guard as a shared library, compiled once for each version of torch."""
    root = Path(torch.__file__).parent
    digest = hashlib.sha256(f"{torch.__version__}{root}{_GUARD}".encode()).hexdigest()[:16]
    library = Path(tempfile.gettempdir()) / f"orthoptim-cuda-guard-{digest}" / "guard.so"
    if library.exists() and library.stat().st_uid == Path.home().stat().st_uid:
        return library
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise NoCompilerError("counting launches needs a C++ compiler (c++, g++ or clang++), and none was found")
    folder = Path(tempfile.mkdtemp(prefix="orthoptim-guard-"))
    source, made = folder / "guard.cpp", folder / "guard.so"
    source.write_text(_GUARD)
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    options = ["-shared", "-fPIC", "-O0", "-std=c++20", abi, f"-I{root / 'include'}", f"-L{root / 'lib'}", "-lc10"]
    subprocess.run([compiler, str(source), "-o", str(made), *options], check=True, capture_output=True)
    try:
        library.parent.mkdir(mode=0o700, exist_ok=True)
        made.replace(library)
    except OSError:  # somebody else's folder: use our own
        return made
    shutil.rmtree(folder)
    return library
