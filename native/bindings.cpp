// The module pccl._native: the only file of the native part that knows Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string_view>

#include "attempts.hpp"
#include "build_info.hpp"
#include "exchange.hpp"
#include "kernels.hpp"
#include "outer.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

nb::dict build_facts() {
    const pccl::BuildInfo info = pccl::build_info();
    nb::dict facts;
    facts["compiler"] = info.compiler;
    facts["cxx_standard"] = info.cxx_standard;
    facts["instruction_sets"] = info.instruction_sets;
    facts["kernels"] = pccl::kernels().name;
    return facts;
}

std::uint8_t* memory(std::uintptr_t address) {
    return reinterpret_cast<std::uint8_t*>(address);
}

std::vector<std::string> kernel_names() {
    const pccl::Kernels* found[4];
    std::vector<std::string> names;
    const std::size_t count = pccl::usable_kernels(found);
    for (std::size_t i = 0; i < count; ++i) names.emplace_back(found[i]->name);
    return names;
}

const pccl::Kernels& variant(std::size_t which) {
    const pccl::Kernels* found[4];
    if (which >= pccl::usable_kernels(found)) throw nb::index_error("no such variant of the kernels on this machine");
    return *found[which];
}

void bind_kernels(nb::module_& module) {
    module.def("kernel_names", kernel_names, "Variants of the kernels that this machine can run, the plainest first.");
    module.def(
        "combine",
        [](std::size_t which, int type, int op, std::uintptr_t out, std::uintptr_t a, std::uintptr_t b, std::size_t n) {
            variant(which).combine[type][op](memory(out), memory(a), memory(b), n);
        },
        "out[i] = a[i] op b[i] with one variant of the kernels.");
    module.def(
        "divide",
        [](std::size_t which, int type, std::uintptr_t values, std::size_t n, std::size_t peers) {
            variant(which).divide[type](memory(values), n, peers);
        },
        "values[i] = values[i] / peers with one variant of the kernels.");
    module.def(
        "check",
        [](std::size_t which, std::uintptr_t bytes, std::size_t length) {
            return variant(which).check(memory(bytes), length);
        },
        "The check of a segment's bytes with one variant of the kernels.");
    module.def(
        "set_aside",
        [](std::size_t which, std::uintptr_t to, std::uintptr_t from, std::size_t bytes) {
            variant(which).set_aside(memory(to), memory(from), bytes);
        },
        "A copy past the caches with one variant of the kernels.");
}

const pccl::CodecKernels& codec(std::size_t which, std::size_t id) {
    if (id < 1 || id > pccl::codecs) throw nb::index_error("no such codec");
    return variant(which).codecs[id - 1];
}

void bind_codecs(nb::module_& module) {
    module.def(
        "codec_shapes",
        [] {
            nb::list shapes;
            for (std::size_t id = 1; id <= pccl::codecs; ++id) {
                const pccl::CodecKernels& one = codec(0, id);
                shapes.append(nb::make_tuple(one.name, one.bits, one.metadata[0], one.metadata[1]));
            }
            return shapes;
        },
        "Name, bits and metadata in float and in double of every codec, in the order of their ids.");
    module.def(
        "encode_block",
        [](std::size_t which, std::size_t id, bool wide, std::uintptr_t coded, std::uintptr_t values, std::size_t n,
           std::optional<std::uint32_t> key) {
            codec(which, id).encode[wide](memory(coded), memory(values), n, key ? &*key : nullptr);
        },
        "which"_a, "id"_a, "wide"_a, "coded"_a, "values"_a, "n"_a, "key"_a.none(),
        "Code a block of floats, or doubles if wide, with one variant of the kernels.");
    module.def(
        "decode_block",
        [](std::size_t which, std::size_t id, bool wide, std::uintptr_t values, std::uintptr_t coded, std::size_t n) {
            codec(which, id).decode[wide](memory(values), memory(coded), n);
        },
        "The way back.");
}

void reduce_all(int type, int op, std::uintptr_t out, const std::vector<nb::bytes>& contributions) {
    if (contributions.empty()) throw nb::value_error("nothing to reduce");
    std::vector<const std::uint8_t*> all;
    for (const nb::bytes& each : contributions) {
        if (each.size() != contributions[0].size()) throw nb::value_error("contributions of different lengths");
        all.push_back(static_cast<const std::uint8_t*>(each.data()));
    }
    const auto element = static_cast<pccl::DataType>(type);
    const std::size_t count = contributions[0].size() / pccl::item_size(element);
    pccl::reduce_all(element, static_cast<pccl::ReduceOp>(op), memory(out), all, count);
}

pccl::Coding coding(const pccl::Plan& plan, std::uintptr_t carried, std::uintptr_t lost) {
    if (plan.codec.id < 1 || plan.codec.id > pccl::codecs) throw nb::value_error("no such codec");
    return {plan.codec, plan.type, plan.op, {memory(carried), memory(lost)}};
}

nb::bytes encode_contribution(const pccl::Plan& plan, std::uintptr_t input, std::uint64_t draw, std::uintptr_t carried,
                              std::uintptr_t lost) {
    const pccl::Coding use = coding(plan, carried, lost);
    std::string coded(use.bytes(plan.count), '\0');
    pccl::encode_contribution(use, reinterpret_cast<std::uint8_t*>(coded.data()), {memory(input), 0, plan.count}, draw);
    return nb::bytes(coded.data(), coded.size());
}

void reduce_all_coded(const pccl::Plan& plan, std::uintptr_t out, const std::vector<nb::bytes>& contributions) {
    const pccl::Coding use = coding(plan, 0, 0);
    std::vector<const std::uint8_t*> all;
    for (const nb::bytes& each : contributions) {
        if (each.size() != use.bytes(plan.count)) throw nb::value_error("a contribution of another length");
        all.push_back(static_cast<const std::uint8_t*>(each.data()));
    }
    if (all.empty()) throw nb::value_error("nothing to reduce");
    pccl::reduce_all(use, plan.type, memory(out), all, plan.count);
}

void bind_coding(nb::module_& module) {
    module.def(
        "encode",
        [](const pccl::Plan& plan, std::uintptr_t coded, std::uintptr_t values) {
            coding(plan, 0, 0).encode(memory(coded), {memory(values), 0, plan.count}, 0);
        },
        "Elements to codes, as in the first hop.");
    module.def(
        "fold",
        [](const pccl::Plan& plan, std::uintptr_t coded, std::uintptr_t values) {
            coding(plan, 0, 0).fold(memory(coded), {memory(values), 0, plan.count}, 0);
        },
        "Codes reduced with elements, as in a hop that reduces.");
    module.def(
        "decode",
        [](const pccl::Plan& plan, std::uintptr_t values, std::uintptr_t coded) {
            coding(plan, 0, 0).decode(memory(values), memory(coded), plan.count);
        },
        "Codes to elements, as in a hop that copies.");
}

void bind_exchange(nb::module_& module) {
    module.def("reduce_all", reduce_all, "out[i] = contributions, by rank, reduced element by element.");
    module.def("encode_contribution", encode_contribution, "What a peer brings to an exchange, as codes.");
    module.def("reduce_all_coded", reduce_all_coded, "Like reduce_all, of contributions that are codes.");
    module.def(
        "check_bytes", [](const nb::bytes& bytes) { return pccl::kernels().check(bytes.data(), bytes.size()); },
        "The check of a segment's bytes with the best variant of the kernels.");
}

void bind_outer(nb::module_& module) {
    module.def(
        "outer_step",
        [](std::uintptr_t theta, std::uintptr_t momentum, std::uintptr_t delta, std::size_t count, float total,
           float rate, float mu) {
            const auto at = [](std::uintptr_t address) { return reinterpret_cast<float*>(address); };
            const pccl::OuterRates rates{total, rate, mu};
            const pccl::OuterFigures found = pccl::outer_step(at(theta), at(momentum), at(delta), count, rates);
            return std::make_tuple(found.delta, found.momentum, found.both);
        },
        nb::call_guard<nb::gil_scoped_release>(),
        "Nesterov's step of theta and momentum with delta / total; squares of the mean and of the momentum before it, "
        "and their product.");
}

void bind_plan(nb::module_& module) {
    nb::class_<pccl::Plan>(module, "Plan")
        .def(nb::init<>())
        .def_rw("tag", &pccl::Plan::tag)
        .def_rw("attempt", &pccl::Plan::attempt)
        .def_rw("count", &pccl::Plan::count)
        .def_rw("rank", &pccl::Plan::rank)
        .def_rw("size", &pccl::Plan::size)
        .def_rw("root", &pccl::Plan::root)
        .def_prop_rw(
            "codec", [](const pccl::Plan& plan) { return plan.codec.id; },
            [](pccl::Plan& plan, std::uint32_t value) {
                if (value > pccl::codecs) throw nb::value_error("no such codec");
                plan.codec.id = value;
            })
        .def_prop_rw(
            "block", [](const pccl::Plan& plan) { return plan.codec.block; },
            [](pccl::Plan& plan, std::uint32_t value) {
                if (value == 0 || value % 8 != 0 || value > pccl::block_max) throw nb::value_error("no such block");
                plan.codec.block = value;
            })
        .def_prop_rw(
            "stochastic", [](const pccl::Plan& plan) { return plan.codec.stochastic; },
            [](pccl::Plan& plan, bool value) { plan.codec.stochastic = value; })
        .def_prop_rw(
            "seed", [](const pccl::Plan& plan) { return plan.codec.seed; },
            [](pccl::Plan& plan, std::uint64_t value) { plan.codec.seed = value; })
        .def_rw("segment_bytes", &pccl::Plan::segment_bytes)
        .def_rw("strands", &pccl::Plan::strands)
        .def_rw("stall_s", &pccl::Plan::stall_s)
        .def_rw("bytes_min_s", &pccl::Plan::bytes_min_s)
        .def_rw("repeat_every", &pccl::Plan::repeat_every)
        .def_prop_rw(
            "kind", [](const pccl::Plan& plan) { return static_cast<int>(plan.kind); },
            [](pccl::Plan& plan, int value) { plan.kind = static_cast<pccl::Kind>(value); })
        .def_prop_rw(
            "dtype", [](const pccl::Plan& plan) { return static_cast<int>(plan.type); },
            [](pccl::Plan& plan, int value) { plan.type = static_cast<pccl::DataType>(value); })
        .def_prop_rw(
            "op", [](const pccl::Plan& plan) { return static_cast<int>(plan.op); },
            [](pccl::Plan& plan, int value) { plan.op = static_cast<pccl::ReduceOp>(value); });
    nb::class_<pccl::Report>(module, "Report")
        .def_ro("cause", &pccl::Report::cause)
        .def_ro("broken_next", &pccl::Report::broken_next)
        .def_ro("broken_prev", &pccl::Report::broken_prev)
        .def_ro("sent_bytes", &pccl::Report::sent_bytes)
        .def_ro("received_bytes", &pccl::Report::received_bytes)
        .def_ro("repeated_bytes", &pccl::Report::repeated_bytes)
        .def_prop_ro(
            "rests",
            [](const pccl::Report& report) {
                nb::list rests;
                for (const pccl::Rest& rest : report.rests) {
                    rests.append(nb::make_tuple(rest.lane, rest.skip, nb::bytes(rest.head.data(), rest.head.size())));
                }
                return rests;
            })
        .def_prop_ro("checks", [](const pccl::Report& report) {
            return nb::bytes(reinterpret_cast<const char*>(report.checks.data()), report.checks.size() * 8);
        });
}

// Bytes of Python that are moved without its lock; the view keeps them where they are.
class View {
  public:
    View(nb::handle object, int flags) {
        if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) throw nb::python_error();
    }
    ~View() { PyBuffer_Release(&view_); }
    View(const View&) = delete;
    View& operator=(const View&) = delete;
    void* data() const { return view_.buf; }
    std::size_t size() const { return static_cast<std::size_t>(view_.len); }

  private:
    Py_buffer view_{};
};

std::string_view seen(const nb::bytes& bytes) {
    return {static_cast<const char*>(bytes.data()), bytes.size()};
}

class TlsMaker {
  public:
    TlsMaker(const nb::bytes& certificate, const nb::bytes& key, std::uint64_t rekey_bytes)
        : context_(
              std::make_shared<pccl::TlsContext>(pccl::openssl::load({}), seen(certificate), seen(key), rekey_bytes)) {}

    TlsMaker(const std::string& certificate, const std::string& key, const std::string& ca, std::uint64_t rekey_bytes)
        : context_(std::make_shared<pccl::TlsContext>(pccl::openssl::load({}),
                                                      pccl::CertificateFiles{certificate, key, ca}, rekey_bytes)) {}

    pccl::Channel wrap(int fd, bool dials, const nb::bytes& first) const {
        return {fd, std::make_shared<pccl::Tls>(context_, fd, dials, seen(first))};
    }

  private:
    std::shared_ptr<const pccl::TlsContext> context_;
};

pccl::Tls& tls_of(const pccl::Channel& channel) {
    if (!channel.tls) throw nb::value_error("a plain lane is used by way of its socket");
    return *channel.tls;
}

// How many bytes moved; -1 if none could now, -2 if the lane is broken, which `cause` explains.
int outcome(pccl::Moved moved, std::size_t bytes) {
    return moved == pccl::Moved::some ? static_cast<int>(bytes) : moved == pccl::Moved::nothing_now ? -1 : -2;
}

// No call moves more: enough for every chunk of a state, and it fits an int.
constexpr std::size_t moved_max = std::size_t{16} << 20;

int channel_send(const pccl::Channel& channel, nb::handle data) {
    const View view(data, PyBUF_SIMPLE);
    const nb::gil_scoped_release released;
    const iovec part{view.data(), std::min(view.size(), moved_max)};
    std::size_t bytes = 0;
    const pccl::Moved moved = tls_of(channel).send(&part, 1, bytes);
    return outcome(moved, bytes);
}

int channel_receive(const pccl::Channel& channel, nb::handle into) {
    const View view(into, PyBUF_WRITABLE);
    const nb::gil_scoped_release released;
    std::size_t bytes = 0;
    const pccl::Moved moved = tls_of(channel).receive(view.data(), std::min(view.size(), moved_max), bytes);
    return outcome(moved, bytes);
}

void bind_tls(nb::module_& module) {
    module.def(
        "load_openssl",
        [](const std::vector<std::string>& files) {
            return std::string(pccl::openssl::load(files).OpenSSL_version(0));
        },
        "Bind the OpenSSL in the first of these files that has what is needed; its version.");
    nb::class_<pccl::Channel>(module, "Channel")
        .def(
            "__init__", [](pccl::Channel* self, int fd) { new (self) pccl::Channel{fd}; }, "A plain one.")
        .def_ro("fd", &pccl::Channel::fd)
        .def(
            "after",
            [](const pccl::Channel& channel, std::size_t skip, const nb::bytes& head) {
                return pccl::Channel{channel.fd, channel.tls, skip, std::string(seen(head))};
            },
            "skip"_a, "head"_a, "The same, with what the last user has left in front of the next message.")
        .def("hello", [](const pccl::Channel& channel) { return static_cast<int>(tls_of(channel).hello()); })
        .def(
            "handshake", [](const pccl::Channel& channel) { return static_cast<int>(tls_of(channel).handshake()); },
            nb::call_guard<nb::gil_scoped_release>())
        .def("certificate",
             [](const pccl::Channel& channel) {
                 const std::string der = tls_of(channel).certificate();
                 return nb::bytes(der.data(), der.size());
             })
        .def("send", channel_send)
        .def("receive", channel_receive)
        .def("peek", [](const pccl::Channel& channel) { return outcome(tls_of(channel).peek(), 1); })
        .def_prop_ro("pending", [](const pccl::Channel& channel) { return tls_of(channel).pending(); })
        .def_prop_ro("torn", [](const pccl::Channel& channel) { return tls_of(channel).torn(); })
        .def_prop_ro("ended", [](const pccl::Channel& channel) { return tls_of(channel).ended(); })
        .def_prop_ro("cause", [](const pccl::Channel& channel) { return tls_of(channel).cause(); })
        .def_prop_ro("rekeyed", [](const pccl::Channel& channel) { return tls_of(channel).rekeyed(); });
    nb::class_<TlsMaker>(module, "Tls")
        .def(nb::init<const nb::bytes&, const nb::bytes&, std::uint64_t>(), "certificate"_a, "key"_a, "rekey_bytes"_a,
             "Of one peer. OpenSSL must have been loaded.")
        .def(nb::init<const std::string&, const std::string&, const std::string&, std::uint64_t>(), "certificate"_a,
             "key"_a, "ca"_a, "rekey_bytes"_a,
             "The same from files in PEM; both ends of its connections must be of the CA.")
        .def("wrap", &TlsMaker::wrap, "fd"_a, "dials"_a, "first"_a,
             "TLS on a connected descriptor, which stays the caller's; `first` goes out before it, in the clear.");
}

void bind_run(nb::module_& module) {
    nb::class_<pccl::Notifier>(module, "Notifier")
        .def(nb::init<>())
        .def_prop_ro("fd", &pccl::Notifier::fd)
        .def("clear", &pccl::Notifier::clear);
    nb::class_<pccl::Attempt>(module, "Attempt")
        .def("abort", &pccl::Attempt::abort)
        .def_prop_ro("ended", &pccl::Attempt::ended)
        .def_prop_ro("report", &pccl::Attempt::report)
        .def_prop_ro("moved_bytes", &pccl::Attempt::moved_bytes)
        .def("commit", &pccl::Attempt::commit, nb::call_guard<nb::gil_scoped_release>())
        .def("restore", &pccl::Attempt::restore, nb::call_guard<nb::gil_scoped_release>());
    module.def(
        "start",
        [](const pccl::Plan& plan, std::uintptr_t input, std::uintptr_t output, const std::vector<pccl::Channel>& next,
           const std::vector<pccl::Channel>& prev, const pccl::Notifier& notifier, std::uintptr_t carried,
           std::uintptr_t lost) {
            if (plan.codec.id != 0 && plan.codec.block == 0) throw nb::value_error("a codec without a block");
            if (plan.strands < 1 || (plan.strands > 1 && plan.strands > std::min(next.size(), prev.size()))) {
                throw nb::value_error("a strand without a lane");
            }
            const pccl::Memory all{memory(input), memory(output), {memory(carried), memory(lost)}};
            auto attempt = std::make_shared<pccl::Attempt>(plan, all, next, prev, notifier);
            pccl::start(attempt);
            return attempt;
        },
        "plan"_a, "input"_a, "output"_a, "next"_a, "prev"_a, "notifier"_a, "carried"_a = 0, "lost"_a = 0,
        "Begin an attempt and return at once.");
}

}  // namespace

NB_MODULE(_native, module) {
    module.doc() = "The native data plane.";
    // A process may end while the control thread, a daemon, still holds lanes: that is no news for its user.
    nb::set_leak_warnings(false);
    module.def("build_info", build_facts,
               "Compiler and C++ standard of this build, the instruction sets of the machine it runs on, and the "
               "variant of the kernels chosen for it.");
    bind_kernels(module);
    bind_codecs(module);
    bind_coding(module);
    bind_exchange(module);
    bind_outer(module);
    bind_plan(module);
    bind_tls(module);
    bind_run(module);
}
