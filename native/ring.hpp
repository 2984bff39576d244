// A collective over lanes in a ring: one attempt, or a strand of one, from the first byte to the last, or to its abort.
//
// Words. The elements are cut into *chunks*, and each chunk into *segments*. In every *hop* a peer sends one chunk to
// the next peer and receives one from the previous one; which, and whether it adds its own share, finishes the sum or
// copies what comes, is the *route* of the collective. What arrives in a hop is what leaves in the one after it. Every
// chunk is finished in one place, so all peers end with the same bits.
//
// A segment is sent on as soon as it has been received and treated, on whichever lane takes bytes first; its header
// says where it belongs. So receiving, reducing and sending overlap within a hop and across hops, and a lane that
// stalls delays only what it carries. Of far lanes (`Lane::far`) not even that: when there is nothing else to send,
// what hangs on one is sent again over another. Of two copies the first that is whole counts; the rest of the other is
// skipped, by the next user of its lane if need be.
//
// With a codec what travels are codes. A peer decodes what comes, adds its own share and codes the sum; once a chunk is
// finished its codes are passed on as they are, and every peer decodes them, the one that made them too: not before the
// attempt is committed, so until then nothing is overwritten.
//
// A ring is one *strand* of its attempt: the segments whose index in their chunk is the strand's number modulo the
// number of strands, over lanes of its own. Strands share nothing but the buffers, of which no two touch the same bytes
// (attempts.hpp).
//
// Knows nothing of peers, votes or retries: a strand has a plan, two sets of lanes, two buffers, and an outcome.
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coding.hpp"
#include "kernels.hpp"
#include "lane.hpp"
#include "memory.hpp"
#include "notifier.hpp"
#include "route.hpp"
#include "segment.hpp"

namespace pccl {

// What the next user of a lane finds before its first message: bytes to skip, or bytes that were read of it already.
struct Rest {
    std::uint32_t lane;
    std::size_t skip;
    std::string head;
};

struct Report {
    std::string cause;  // empty: the result is complete
    std::vector<std::uint32_t> broken_next;
    std::vector<std::uint32_t> broken_prev;
    std::uint64_t sent_bytes = 0;
    std::uint64_t received_bytes = 0;
    std::uint64_t repeated_bytes = 0;  // of those sent
    // Lanes from the previous peer that stand in the middle of something of no more use, and are not broken for that.
    std::vector<Rest> rests{};
    // Of all segments of the result, as they lie in it, zero for those of other strands; none if every peer has another
    // result. What is compared between peers: each was computed anyway, when the segment arrived or before it was sent.
    std::vector<std::uint64_t> checks{};
};

// `input` may equal `output` where both are equally long. All of it stays the caller's, and must live until the attempt
// has ended and been settled. What was lost is of use only if it is committed.
struct Memory {
    const std::uint8_t* input;
    std::uint8_t* output;
    Feedback feedback;
};

class Ring {
  public:
    // `wake` ends its sleep, and that of other strands.
    Ring(const Plan& plan, const Memory& memory, const std::vector<Channel>& next, const std::vector<Channel>& prev,
         Notifier wake);

    // Runs to the end; the calling thread does all the work.
    Report run();
    // From any thread: `run` returns when it is woken, whatever the lanes do.
    void stop() { stop_.store(true, std::memory_order_release); }
    // After `run` has returned, one of these. The result stands: decode it, if what came were codes.
    void commit();
    // It does not: put back every byte of an input that was overwritten.
    void restore();

    std::uint64_t moved_bytes() const { return moved_.load(std::memory_order_relaxed); }

  private:
    using Clock = std::chrono::steady_clock;
    struct Outgoing {  // a segment that is ready to be sent
        std::uint32_t hop;
        std::uint32_t index;
        std::uint32_t length;
        int slot;  // where it waits, or -1 if it is sent from a buffer of the caller's
        const std::uint8_t* data;
        std::uint64_t check;
        bool checked;
        bool repeated = false;  // a second copy: it counts for nothing, and there is no third
    };
    struct Flight {  // a segment that the kernel has taken; what it was taken from is kept until it has arrived
        Outgoing segment;
        std::int64_t end;  // of it among the bytes that the lane has taken
    };
    struct Sender {
        Lane lane;
        Header header{};
        Outgoing segment{};
        std::size_t sent = 0;
        bool busy = false;
        bool spared = false;  // what is left is there sooner over the lanes that are served before this one
        Flow flow{};
        std::deque<Flight> flying{};
        std::int64_t arrived = 0;
        Clock::time_point arrived_at{};  // when there was progress
        bool silent = false;             // nothing of what is on its way arrives
        bool hangs = false;
        std::vector<std::uint8_t> coded{};  // a segment of our own, which needs no slot
    };
    struct Held {  // codes of a part of the result, in a slot that is theirs to the end
        const std::uint8_t* codes;
        Place place;
    };
    struct Kept {  // what was overwritten, and where it lies now
        Place place;
        std::size_t at;
    };
    // Of a place in a hop: how many copies of its segment have come, or begun to, and whether one of them is whole.
    struct Copies {
        std::uint8_t begun = 0;
        bool whole = false;
    };
    // `other`: a header that is not of this attempt, nor of one before it; the next user of the lane makes of it what
    // it can.
    enum class Reading { header, slot, payload, stale, other };
    struct Receiver {
        Lane lane;
        Header header{};
        Reading reading = Reading::header;
        std::size_t got = 0;
        int slot = -1;
        std::uint8_t* to = nullptr;
        bool second = false;   // a copy of what has begun to come before: it pays for no patience
        bool refused = false;  // nothing sensible can follow what came
    };
    void work();
    void begin();
    bool finished() const { return unsent_ == 0 && unreceived_ == 0; }
    bool pump(Sender& sender);
    bool pump(Receiver& receiver);
    bool begin(Sender& sender);
    void load(Sender& sender, const Outgoing& segment);
    void taken(Sender& sender);
    static bool reads_on(const Receiver& receiver);
    bool read_header(Receiver& receiver);
    bool pass_over(Receiver& receiver);
    bool accept_header(Receiver& receiver);
    bool find_room(Receiver& receiver);
    bool take_segment(Receiver& receiver);
    void encode_own(Sender& sender);
    void take_values(const Receiver& receiver, const Place& place, Outgoing& segment);
    void take_codes(const Receiver& receiver, const Place& place, Outgoing& segment);
    Stretch own_share(const Place& place) const;
    void pass_on(const Outgoing& segment);
    bool anything_ready() const;
    Outgoing next_ready();
    void save(const Place& place);
    void wait();
    void fail(std::string cause);
    void discard_others(const Receiver& receiver);
    Rest rest_of(std::uint32_t lane) const;
    static bool begun(const Sender& sender);
    static bool broken(const Receiver& receiver);

    // lanes.cpp
    void look_at_lanes(Clock::time_point now);
    void rank_lanes();
    bool retire(Sender& sender);
    bool free_a_slot();
    bool obsolete(const Outgoing& segment);
    bool silent(const Sender& sender) const;
    static double worst_s(const Sender& sender);
    Sender* hung_behind(const Sender& flowing);
    bool repeat(Sender& sender);
    bool lingers(Clock::time_point now);

    Copies& copies(std::uint32_t hop, std::uint32_t index) { return received_[hop][route_.place_of(index)]; }
    void note_check(std::uint32_t chunk, std::uint32_t index, std::uint64_t check);
    Report report() noexcept;

    Plan plan_;
    Route route_;
    const std::uint8_t* input_;
    std::uint8_t* output_;
    bool in_place_;
    const Kernels& kernels_;
    std::optional<Coding> coding_;
    std::vector<Sender> senders_;
    std::vector<std::uint32_t> order_;  // in which they are served
    bool choosy_ = false;               // some of them lead far, and there is more than one
    Clock::time_point looked_at_{};
    std::optional<Clock::time_point> lingers_until_;
    std::deque<Outgoing> forced_;  // to be sent again because a test wants it
    std::uint32_t taken_ = 0;
    std::vector<Receiver> receivers_;
    std::deque<Outgoing> ready_;      // received segments that are to be sent on
    std::uint32_t own_sent_ = 0;      // segments of the input that were taken for hop 0
    std::uint32_t own_segments_ = 0;  // of this strand
    std::uint64_t unsent_ = 0;
    std::uint64_t unreceived_ = 0;
    std::vector<std::vector<Copies>> received_;  // [hop][place among the segments of this strand]
    Slots slots_;
    std::vector<Held> held_;
    std::vector<std::uint64_t> checks_;        // of the result's segments
    std::vector<std::size_t> first_segments_;  // of each chunk, counted through
    std::unique_ptr<Arena> saved_;
    std::size_t saved_bytes_ = 0;
    std::vector<Kept> overwritten_;
    std::vector<pollfd> watched_;
    std::string cause_;
    Report report_;  // with room for all lanes
    std::uint64_t sent_bytes_ = 0;
    std::uint64_t received_bytes_ = 0;
    std::uint64_t repeated_bytes_ = 0;
    std::uint64_t useful_bytes_ = 0;  // of this attempt: those of earlier ones are no progress
    std::atomic<std::uint64_t> moved_{0};
    std::atomic<bool> stop_{false};
    Notifier wake_;
};

}  // namespace pccl
