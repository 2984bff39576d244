// The part of the ring that looks at its lanes: which is served first, what hangs on one, and what is sent again.
//
// Of far lanes alone, and where there are several: of near ones none is slow for longer than it takes to look.
#include <algorithm>
#include <limits>

#include "ring.hpp"

namespace pccl {
namespace {

// How long the order of lanes holds: a small part of the round trip of any of them, in which little changes, and
// hundreds of times what it takes to ask the kernel about one.
constexpr std::chrono::milliseconds order_holds{2};

// A lane on which nothing has arrived for so many round trips, though something is on its way, hangs. An
// acknowledgement takes one, and may wait for a second segment; what was lost is sent again by the kernel after one
// more.
constexpr double silent_round_trips = 2;

// Who is done begins no copy later than this: about two round trips of any link, and what the kernel itself waits
// before it believes that the last bytes of all were lost.
constexpr std::chrono::milliseconds linger_max{500};

}  // namespace

void Ring::look_at_lanes(Clock::time_point now) {
    if (!choosy_ || now - looked_at_ < order_holds) return;
    looked_at_ = now;
    for (Sender& sender : senders_) {
        sender.flow = sender.lane.flow();
        retire(sender);
        // Not by what it may still be helped with: second copies, and what lost its slot, are on their way as well.
        const bool idle = sender.flow.unacked_bytes <= 0;
        if (idle) sender.arrived_at = now;
        sender.silent = !idle && silent(sender);
        sender.hangs = sender.silent || (!idle && sender.flow.recovering);
    }
    rank_lanes();
}

// The lane on which a segment arrives first is served first. And near the end a slow lane is spared: what it took now
// would be there after everything that the faster ones have and get.
void Ring::rank_lanes() {
    const double segment = sizeof(Header) + static_cast<double>(route_.segment_bytes());
    // One that is dead has no rate, whatever its window says.
    const auto dead = [](const Sender& sender) { return sender.silent && sender.flow.timed_out; };
    const auto seconds = [&](std::uint32_t lane) {
        const Sender& sender = senders_[lane];
        return dead(sender) ? std::numeric_limits<double>::infinity() : sender.flow.seconds(segment);
    };
    std::sort(order_.begin(), order_.end(), [&](std::uint32_t a, std::uint32_t b) { return seconds(a) < seconds(b); });
    double bytes = static_cast<double>(unsent_) * segment, bytes_per_s = 0;
    for (const std::uint32_t lane : order_) {
        Sender& sender = senders_[lane];
        sender.spared = sender.flow.seconds(segment) * bytes_per_s > bytes;
        bytes += sender.flow.unacked_bytes;
        if (!dead(sender)) bytes_per_s += sender.flow.bytes_per_s;
    }
}

// ── what hangs ───────────────────────────────────────────────────────────────────────────────────────────────────────

// What has arrived need not be kept. True if a slot is free that was not.
bool Ring::retire(Sender& sender) {
    bool freed = false;
    if (!choosy_) return freed;
    if (const std::int64_t arrived = sender.lane.arrived(); arrived != sender.arrived) {
        sender.arrived = arrived;
        sender.arrived_at = Clock::now();
    }
    for (; !sender.flying.empty() && sender.flying.front().end <= sender.arrived; sender.flying.pop_front()) {
        const int slot = sender.flying.front().segment.slot;
        if (slot >= 0) slots_.give(slot);
        freed |= slot >= 0;
    }
    return freed;
}

// Segments on their way keep their slots only as long as there are others: they are the kernel's, so the argument why
// slots never run out for good (see the constructor) does not change. What lost its slot is not sent again.
bool Ring::free_a_slot() {
    bool freed = false;
    for (Sender& sender : senders_) {
        freed |= retire(sender);
    }
    // Those that have none keep their right to a second copy: to lose it would be of no use.
    const auto give_up_one = [&](auto& waiting, auto slot_of) {
        const auto held = [&](const auto& each) { return slot_of(each) >= 0; };
        const auto first = std::find_if(waiting.begin(), waiting.end(), held);
        if (freed || first == waiting.end()) return;
        slots_.give(slot_of(*first));
        waiting.erase(first);
        freed = true;
    };
    for (Sender& sender : senders_) {
        give_up_one(sender.flying, [](const Flight& flight) { return flight.segment.slot; });
    }
    give_up_one(forced_, [](const Outgoing& segment) { return segment.slot; });
    return freed;
}

// What went around the ring and came back has passed the next peer, and what it was sent from may be overwritten by it.
bool Ring::obsolete(const Outgoing& segment) {
    const std::uint32_t back = segment.hop + plan_.size - 1;
    return plan_.kind == Kind::all_reduce && back < route_.hops() && copies(back, segment.index).begun > 0;
}

// Nothing on it was acknowledged for longer than that takes.
bool Ring::silent(const Sender& sender) const {
    const double silent_s = std::chrono::duration<double>(looked_at_ - sender.arrived_at).count();
    return silent_s > silent_round_trips * sender.flow.round_trip_s + sender.flow.pause_s;
}

// Until the last that flies on it has arrived.
double Ring::worst_s(const Sender& sender) {
    if (sender.silent) return std::numeric_limits<double>::infinity();
    const auto ahead = static_cast<double>(sender.flying.back().end - sender.arrived);
    return ahead / sender.flow.rate() + (sender.flow.recovering ? sender.flow.round_trip_s : 0);
}

// The lane on which something hangs that would be there sooner if it were sent again over this one; null if there is
// none.
Ring::Sender* Ring::hung_behind(const Sender& flowing) {
    const auto sooner_s = [&](const Outgoing& segment) {
        return flowing.flow.seconds(static_cast<double>(sizeof(Header) + segment.length));
    };
    Sender* worst = nullptr;
    for (Sender& sender : senders_) {
        while (!sender.flying.empty() && obsolete(sender.flying.back().segment)) {
            if (const int slot = sender.flying.back().segment.slot; slot >= 0) slots_.give(slot);
            sender.flying.pop_back();
        }
        if (&sender == &flowing || !sender.hangs || sender.flying.empty()) continue;
        if (worst_s(sender) < sooner_s(sender.flying.back().segment)) continue;
        if (worst == nullptr || worst_s(*worst) < worst_s(sender)) worst = &sender;
    }
    return worst;
}

// Nothing else is ready: send again what hangs on another lane, the last of it first, while the kernel works from the
// front. The flight becomes the second copy, and brings along the slot: there is no third.
bool Ring::repeat(Sender& sender) {
    if (lingers_until_ && Clock::now() >= *lingers_until_) return false;
    Outgoing segment;
    if (!forced_.empty() && !finished() && sender.lane.ready()) {
        segment = forced_.front();
        forced_.pop_front();
        if (obsolete(segment)) {
            if (segment.slot >= 0) slots_.give(segment.slot);
            return false;
        }
    } else {
        if (!choosy_ || !sender.lane.far() || sender.hangs || !sender.lane.cause().empty()) return false;
        Sender* const hung = hung_behind(sender);
        if (hung == nullptr || !sender.lane.ready()) return false;
        segment = hung->flying.back().segment;
        hung->flying.pop_back();
    }
    segment.repeated = segment.checked = true;
    load(sender, segment);
    return true;
}

// In the middle of what is being sent: the lane is of no use before the rest has left, too.
bool Ring::begun(const Sender& sender) {
    return sender.busy && (sender.sent > 0 || sender.lane.torn());
}

// All is sent and received. Stay for what hangs and could be sent again; and for the rest of a copy that has begun, as
// long as the attempt has patience: a lane that is left in the middle of it is lost, and with its link the attempt of a
// peer that is not done.
bool Ring::lingers(Clock::time_point now) {
    if (!lingers_until_) lingers_until_ = now + linger_max;
    look_at_lanes(now);
    return std::any_of(senders_.begin(), senders_.end(), [&](const Sender& sender) {
        if (!sender.lane.cause().empty()) return false;
        if (begun(sender)) return true;
        if (now >= *lingers_until_) return false;
        return sender.busy || (choosy_ && sender.lane.far() && !sender.hangs && hung_behind(sender) != nullptr);
    });
}

}  // namespace pccl
