// A device for tests, under torch's key for backends of others ("PrivateUse1"): memory that the host cannot touch, and
// streams that run behind the caller's back, as on a GPU. Host access to a tensor's address faults at any time: its
// pages are mapped twice, without any right where tensors see them, writable where only streams look. What is copied
// without waiting is copied later, by the thread of a stream; so each forgotten wait gives wrong values here too.
//
// Functions at the end are called through ctypes, which lets go of the GIL: kernels for tests, counters, switches.

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/library.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

namespace {

constexpr auto kind = c10::DeviceType::PrivateUse1;
constexpr int device_count = 2;

enum Counter { copies_out, bytes_out, copies_in, bytes_in, waits, pinned, pinned_peak, memory, memory_peak, counters };
std::atomic<int64_t> counted[counters];

enum Switch { copy_us, no_pinning, pinned_is_ours, fail_copies_out, fail_copies_in, switches };
std::atomic<int64_t> set_to[switches];

void grow(Counter now, Counter peak, int64_t bytes) {
    const int64_t total = counted[now] += bytes;
    for (int64_t seen = counted[peak]; total > seen && !counted[peak].compare_exchange_weak(seen, total);) {
    }
}

// ── memory ──────────────────────────────────────────────────────────────────────────────────────────────────────────

struct Block {
    Block(size_t wanted, bool ours) : bytes(wanted), ours(ours) {
        const int file = memfd_create("pccl test device", 0);
        TORCH_CHECK(file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0, "the test device has no memory");
        inside = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        outside = ours ? mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, file, 0) : inside;
        close(file);
        TORCH_CHECK(inside != MAP_FAILED && outside != MAP_FAILED, "the test device has no memory");
        grow(ours ? memory : pinned, ours ? memory_peak : pinned_peak, static_cast<int64_t>(bytes));
    }
    ~Block() {
        munmap(inside, bytes);
        if (ours) munmap(outside, bytes);
        counted[ours ? memory : pinned] -= static_cast<int64_t>(bytes);
    }
    size_t bytes;
    bool ours;
    void *inside, *outside;
};

// Work that is queued keeps the blocks that it works on, as a caching allocator does for the stream of an allocation.
std::mutex blocks_lock;
std::map<uintptr_t, std::shared_ptr<Block>> blocks;

std::shared_ptr<Block> block_at(const void* address) {
    std::lock_guard held(blocks_lock);
    const auto place = reinterpret_cast<uintptr_t>(address);
    auto next = blocks.upper_bound(place);
    if (next == blocks.begin()) return nullptr;
    const auto& found = std::prev(next)->second;
    return place < reinterpret_cast<uintptr_t>(found->outside) + found->bytes ? found : nullptr;
}

void forget(void* address) {
    std::shared_ptr<Block> last;  // unmapped after the lock is free
    std::lock_guard held(blocks_lock);
    last = std::move(blocks.extract(reinterpret_cast<uintptr_t>(address)).mapped());
}

c10::DataPtr allocate_block(size_t bytes, bool ours, c10::Device where) {
    if (bytes == 0) return {nullptr, where};
    auto made = std::make_shared<Block>(bytes, ours);
    void* address = made->outside;
    std::lock_guard held(blocks_lock);
    blocks[reinterpret_cast<uintptr_t>(address)] = std::move(made);
    return {address, address, &forget, where};
}

thread_local c10::DeviceIndex current_device = 0;

struct DeviceAllocator final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override { return allocate_block(bytes, true, {kind, current_device}); }
    c10::DeleterFnPtr raw_deleter() const override { return &forget; }
    void copy_data(void*, const void*, size_t) const override { TORCH_CHECK(false, "the host must not copy"); }
};

struct PinnedAllocator final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override {
        return allocate_block(bytes, false, set_to[pinned_is_ours] ? c10::Device(kind, 0) : c10::Device(c10::kCPU));
    }
    c10::DeleterFnPtr raw_deleter() const override { return &forget; }
    void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

DeviceAllocator device_allocator;
PinnedAllocator pinned_allocator;
REGISTER_ALLOCATOR(kind, &device_allocator)

// ── streams and events ──────────────────────────────────────────────────────────────────────────────────────────────

struct Queue {
    Queue() {
        std::thread([this] { run(); }).detach();
    }

    void push(std::function<void()> job) {
        std::lock_guard held(lock);
        jobs.push_back(std::move(job));
        ++pushed;
        changed.notify_all();
    }
    bool idle() {
        std::lock_guard held(lock);
        return done == pushed;
    }
    void wait() {
        ++counted[waits];
        std::unique_lock held(lock);
        changed.wait(held, [this, all = pushed] { return done >= all; });
    }
    void run() {
        const c10::InferenceMode plain;  // a stream knows nothing of autograd
        std::unique_lock held(lock);
        while (true) {
            changed.wait(held, [this] { return !jobs.empty(); });
            {
                const auto job = std::move(jobs.front());
                jobs.pop_front();
                held.unlock();
                job();
            }
            held.lock();
            ++done;
            changed.notify_all();
        }
    }
    std::mutex lock;
    std::condition_variable changed;
    std::deque<std::function<void()>> jobs;
    int64_t pushed = 0, done = 0;
};

// Streams are never freed: their threads wait for work until the process ends.
std::mutex queues_lock;
std::vector<Queue*> queues[device_count];
thread_local c10::StreamId current_stream[device_count];

Queue& queue_of(c10::DeviceIndex device, c10::StreamId stream) {
    std::lock_guard held(queues_lock);
    auto& ours = queues[device];
    while (ours.size() <= static_cast<size_t>(stream)) ours.push_back(new Queue);
    return *ours[stream];
}

Queue& current_queue(c10::DeviceIndex device) {
    return queue_of(device, current_stream[device]);
}

struct Event {
    std::mutex lock;
    std::condition_variable changed;
    int64_t recorded = 0, reached = 0;

    void await(int64_t version) {
        std::unique_lock held(lock);
        changed.wait(held, [&] { return reached >= version; });
    }
};
using SharedEvent = std::shared_ptr<Event>;

void record_on(Queue& queue, const SharedEvent& event) {
    int64_t version = 0;
    {
        std::lock_guard held(event->lock);
        version = ++event->recorded;
    }
    queue.push([event, version] {
        std::lock_guard held(event->lock);
        event->reached = std::max(event->reached, version);
        event->changed.notify_all();
    });
}

void wait_on(Queue& queue, const SharedEvent& event) {
    std::lock_guard held(event->lock);
    queue.push([event, version = event->recorded] { event->await(version); });
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
    c10::DeviceType type() const override { return kind; }
    c10::Device exchangeDevice(c10::Device device) const override {
        const auto before = getDevice();
        setDevice(device);
        return before;
    }
    c10::Device getDevice() const override { return {kind, current_device}; }
    void setDevice(c10::Device device) const override {
        TORCH_CHECK(device.index() < device_count, "the test device has no number ", device.index());
        uncheckedSetDevice(device);
    }
    void uncheckedSetDevice(c10::Device device) const noexcept override {
        if (device.index() >= 0) current_device = device.index();
    }
    c10::Stream stream(c10::Device device, c10::StreamId id) const {
        return c10::Stream(c10::Stream::UNSAFE, full(device), id);
    }
    c10::Device full(c10::Device device) const { return device.has_index() ? device : getDevice(); }
    c10::Stream getStream(c10::Device device) const override {
        return stream(device, current_stream[full(device).index()]);
    }
    c10::Stream getDefaultStream(c10::Device device) const override { return stream(device, 0); }
    c10::Stream getNewStream(c10::Device device, int) const override {
        size_t id = 1;
        {
            std::lock_guard held(queues_lock);
            id = std::max(id, queues[full(device).index()].size());
        }
        queue_of(full(device).index(), static_cast<c10::StreamId>(id));
        return stream(device, static_cast<c10::StreamId>(id));
    }
    c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
    c10::Stream exchangeStream(c10::Stream next) const override {
        const auto before = getStream(next.device());
        current_stream[next.device_index()] = next.id();
        return before;
    }
    c10::DeviceIndex deviceCount() const noexcept override { return device_count; }

    static SharedEvent& shared(void* event) { return *static_cast<SharedEvent*>(event); }
    void record(void** event, const c10::Stream& on, const c10::DeviceIndex, const c10::EventFlag) const override {
        if (*event == nullptr) *event = new SharedEvent(std::make_shared<Event>());
        record_on(queue_of(on.device_index(), on.id()), shared(*event));
    }
    void block(void* event, const c10::Stream& on) const override {
        if (event != nullptr) wait_on(queue_of(on.device_index(), on.id()), shared(event));
    }
    bool queryEvent(void* event) const override {
        if (event == nullptr) return true;
        std::lock_guard held(shared(event)->lock);
        return shared(event)->reached >= shared(event)->recorded;
    }
    void synchronizeEvent(void* event) const override {
        if (event == nullptr) return;
        ++counted[waits];
        const auto kept = shared(event);
        std::unique_lock held(kept->lock);
        kept->changed.wait(held, [&, version = kept->recorded] { return kept->reached >= version; });
    }
    void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
        delete static_cast<SharedEvent*>(event);
    }
    bool queryStream(const c10::Stream& on) const override { return queue_of(on.device_index(), on.id()).idle(); }
    void synchronizeStream(const c10::Stream& on) const override { queue_of(on.device_index(), on.id()).wait(); }
    void synchronizeDevice(const c10::DeviceIndex device) const override {
        for (size_t id = 0;; ++id) {
            {
                std::lock_guard held(queues_lock);
                if (id >= queues[device].size()) return;
            }
            queue_of(device, static_cast<c10::StreamId>(id)).wait();
        }
    }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return true; }
    bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
    c10::DeviceIndex deviceCount() const override { return device_count; }
    void setCurrentDevice(c10::DeviceIndex device) const override { Guard().setDevice({kind, device}); }
    c10::DeviceIndex getCurrentDevice() const override { return current_device; }
    c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
        return Guard().exchangeDevice({kind, device}).index();
    }
    c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
    bool isPinnedPtr(const void* data) const override {
        const auto found = block_at(data);
        return found && !found->ours;
    }
    at::Allocator* getPinnedMemoryAllocator() const override {
        TORCH_CHECK(!set_to[no_pinning], "this device has no pinned memory");
        return &pinned_allocator;
    }
};

const bool registered = [] {
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    return true;
}();

// ── operators ───────────────────────────────────────────────────────────────────────────────────────────────────────

/// The same elements as a tensor of the CPU, for the thread of a stream; and what keeps their memory.
at::Tensor seen_inside(const at::Tensor& tensor, std::shared_ptr<Block>& kept) {
    kept = block_at(tensor.storage().data());
    auto* address = static_cast<char*>(const_cast<void*>(tensor.storage().data()));
    if (kept) address = static_cast<char*>(kept->inside) + (address - static_cast<char*>(kept->outside));
    const auto options = tensor.options().device(c10::kCPU).pinned_memory(false);
    return at::from_blob(address + tensor.storage_offset() * tensor.itemsize(), tensor.sizes(), tensor.strides(),
                         options);
}

void fail_if(Switch what) {
    if (set_to[what] > 0 && set_to[what]-- > 0) TORCH_CHECK(false, "the test device was told to fail");
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
    const bool out = !to.is_privateuseone(), in = !from.is_privateuseone();
    if (to.numel() == 0) return to;
    if (out) fail_if(fail_copies_out);
    if (in) fail_if(fail_copies_in);
    std::shared_ptr<Block> source_kept, target_kept;
    auto source = seen_inside(from.expand(to.sizes()), source_kept), target = seen_inside(to, target_kept);
    if (in && !source_kept) source = source.clone();  // pageable: the caller may overwrite it at once
    auto& queue = current_queue(in ? to.device().index() : from.device().index());
    if (!in && !out && from.device() != to.device()) {  // both streams meet before and after
        auto before = std::make_shared<Event>();
        record_on(current_queue(to.device().index()), before);
        wait_on(queue, before);
    }
    queue.push([in, out, source, target, source_kept, target_kept] {
        if (in || out) usleep(static_cast<useconds_t>(set_to[copy_us]));
        target.copy_(source);
    });
    if (out || in) {
        ++counted[out ? copies_out : copies_in];
        counted[out ? bytes_out : bytes_in] += static_cast<int64_t>(to.nbytes());
        if (!non_blocking || (out && !target_kept)) queue.wait();
    } else if (from.device() != to.device()) {
        auto after = std::make_shared<Event>();
        record_on(queue, after);
        wait_on(current_queue(to.device().index()), after);
    }
    return to;
}

at::Tensor empty(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                 std::optional<c10::Device> device, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
    const c10::OptionalDeviceGuard guard(device);
    return at::detail::empty_generic(sizes, &device_allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                     c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<c10::ScalarType> dtype,
                         std::optional<c10::Layout>, std::optional<c10::Device> device, std::optional<bool>) {
    const c10::OptionalDeviceGuard guard(device);
    return at::detail::empty_strided_generic(sizes, strides, &device_allocator,
                                             c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                             c10::dtype_or_default(dtype));
}

const at::Tensor& resize(const at::Tensor& tensor, c10::IntArrayRef sizes, std::optional<c10::MemoryFormat>) {
    auto* impl = tensor.unsafeGetTensorImpl();
    impl->set_sizes_contiguous(sizes);
    const auto needed = static_cast<size_t>(tensor.numel() * tensor.itemsize() + tensor.storage_offset());
    if (needed > tensor.storage().nbytes()) {  // only ever used for results that hold nothing yet
        const c10::OptionalDeviceGuard guard(tensor.device());
        impl->unsafe_storage().set_data_ptr_noswap(device_allocator.allocate(needed));
        impl->unsafe_storage().set_nbytes(needed);
    }
    return tensor;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
    if (from.sizes() != to.sizes()) resize(to, from.sizes(), std::nullopt);
    return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor& tensor) {
    return tensor.to(c10::kCPU).item();
}

at::Tensor& set_from(at::Tensor& tensor, at::Storage storage, int64_t offset, c10::IntArrayRef sizes,
                     c10::IntArrayRef strides) {
    tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
    tensor.unsafeGetTensorImpl()->set_storage_offset(offset);
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
    return tensor;
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
    m.impl("empty.memory_format", &empty);
    m.impl("empty_strided", &empty_strided);
    m.impl("resize_", &resize);
    m.impl("as_strided", &at::native::as_strided_tensorimpl);
    m.impl("_reshape_alias", &at::native::_reshape_alias);
    m.impl("view", &at::native::view);
    m.impl("_copy_from", &copy_from);
    m.impl("_copy_from_and_resize", &copy_from_and_resize);
    m.impl("_local_scalar_dense", &local_scalar);
    m.impl("set_.source_Storage_storage_offset", &set_from);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
    m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace

// ── for tests ───────────────────────────────────────────────────────────────────────────────────────────────────────

// Kernels wait here until they are let through: what is queued behind one has surely not run yet.
SharedEvent gate = std::make_shared<Event>();

extern "C" {

/// A kernel on the current stream that ends when the test releases it.
void device_hold(int device) {
    std::lock_guard held(gate->lock);
    current_queue(static_cast<c10::DeviceIndex>(device)).push([version = ++gate->recorded] { gate->await(version); });
}

/// Let all that are held go on.
void device_release() {
    std::lock_guard held(gate->lock);
    gate->reached = gate->recorded;
    gate->changed.notify_all();
}

/// A kernel on the current stream that takes this long.
void device_sleep(int device, int ms) {
    current_queue(static_cast<c10::DeviceIndex>(device)).push([ms] { usleep(static_cast<useconds_t>(ms) * 1000); });
}

/// A kernel on the current stream: so many float32 at an address become `times` what they are, plus `plus`.
void device_scale(int device, void* address, int64_t count, float times, float plus) {
    const auto kept = block_at(address);
    auto* values = reinterpret_cast<float*>(static_cast<char*>(kept->inside) +
                                            (static_cast<char*>(address) - static_cast<char*>(kept->outside)));
    current_queue(static_cast<c10::DeviceIndex>(device)).push([=] {
        for (int64_t place = 0; place < count; ++place) values[place] = values[place] * times + plus;
        (void)kept;
    });
}

/// Wait for all streams of all devices; not counted.
void device_settle() {
    const int64_t before = counted[waits];
    for (c10::DeviceIndex device = 0; device < device_count; ++device) Guard().synchronizeDevice(device);
    counted[waits] = before;
}

int64_t device_counter(int which) {
    return counted[which];
}

/// Count from zero; peaks from what there is.
void device_reset() {
    for (const auto each : {copies_out, bytes_out, copies_in, bytes_in, waits}) counted[each] = 0;
    counted[pinned_peak] = counted[pinned].load();
    counted[memory_peak] = counted[memory].load();
}

void device_switch(int which, int64_t value) {
    set_to[which] = value;
}

}  // extern "C"
