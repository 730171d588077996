/*
 * gradwire.h: gradients in few bytes, for C99 and C++.
 *
 * A codec turns a gradient into a frame: one message, which FORMAT.md specifies and every gradwire
 * reads. What it does not send it keeps in a memory and adds to the next gradient. This is the manual;
 * docs/c.md begins with an example.
 *
 * Results. Every call that can fail returns a gw_result: GW_OK, or the number of an error. A call that
 * fails changes nothing but what its description says; the content of output buffers is then
 * unspecified.
 *
 * Objects. Every object can lie in memory of yours: gw_X_size says how many bytes, and gw_X_init makes
 * the object there and writes its address. That memory is aligned to GW_ALIGNMENT, as that of malloc
 * is, belongs to the object until you no longer use it, and is not freed by this library; nor is there
 * anything else to free. gw_X_new does the same in memory that it allocates, and gw_X_free frees it.
 * An object is not moved and not copied. One that another is made of must outlive it only where the
 * description says that it must stay.
 *
 * Errors of every object: GW_ERROR_NULL_POINTER, GW_ERROR_MISALIGNED, GW_ERROR_OBJECT_TOO_SMALL, and
 * GW_ERROR_NOT_AN_OBJECT for an object that was not made, was freed, or is of another kind. The last
 * finds accidents; memory that was freed or never belonged to the program cannot be told from an
 * object.
 *
 * Pointers. An array of no elements may be NULL. Arrays are aligned as their elements are. What a call
 * writes must not overlap what it reads, nor the memory of an object.
 *
 * Out of memory. gw_X_new and gw_exchange_new return GW_ERROR_NO_HEAP. Of the other calls only those of
 * an exchange allocate, in its first steps, until its buffers are long enough. If the system has no
 * memory then, the program ends with abort: stable Rust cannot turn that into a result.
 *
 * Threads. There is no global state. Calls on different objects never disturb each other. Two threads
 * may use one object at once where its description says so; calls that only read it (const) may then
 * run beside each other.
 *
 * Callbacks return. They do not throw and do not jump out.
 */

#ifndef GRADWIRE_H
#define GRADWIRE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif  // __cplusplus

/* ======== Versions and results ======== */

/**
 * The version of this header as one number: 10203 is 1.2.3.
 */
#define GW_VERSION_NUMBER (GW_VERSION_MAJOR * 10000 + GW_VERSION_MINOR * 100 + GW_VERSION_PATCH)

/**
 * The version of this header. While the major version is 0, a new minor version may change functions.
 */
#define GW_VERSION_MAJOR 0

/**
 * See GW_VERSION_MAJOR.
 */
#define GW_VERSION_MINOR 1

/**
 * See GW_VERSION_MAJOR.
 */
#define GW_VERSION_PATCH 0

/**
 * What a call returns: GW_OK, or the number of an error. A number never changes its meaning, and is
 * never used for another. 1 to 99: from encoding; 101 to 199: from reading bytes; 201 to 299: from this
 * interface; 301 to 399: from an exchange. gw_result_name and gw_result_text put it into words.
 */
typedef uint32_t gw_result;

/**
 * Success.
 */
#define GW_OK 0

/**
 * The buffer is too short; the call says how many bytes it needs.
 */
#define GW_ENCODE_BUFFER_TOO_SMALL 1

/**
 * No memory, or one that lacks momentum, the state of a unit or factors, which this codec needs.
 */
#define GW_ENCODE_MEMORY_INCOMPLETE 2

/**
 * This codec takes no memory: what it sends and keeps would not add up.
 */
#define GW_ENCODE_MEMORY_REFUSED 3

/**
 * This codec has no frames: its payloads are sums of all workers, or go between neighbours.
 */
#define GW_ENCODE_NO_FRAMES 4

/**
 * What this codec sends cannot be cut into packets.
 */
#define GW_ENCODE_NO_PACKETS 5

/**
 * Packets of this size have no room for a part of these units.
 */
#define GW_ENCODE_PACKET_TOO_SMALL 6

/**
 * A value of the gradient, or of residual + gradient, is NaN or infinite.
 */
#define GW_ENCODE_NON_FINITE_INPUT 7

/**
 * The encoder's memory is too small for this density.
 */
#define GW_ENCODE_SCRATCH_TOO_SMALL 8

/**
 * The working memory of a linear codec's unit is too small.
 */
#define GW_ENCODE_LINEAR_SCRATCH_TOO_SMALL 9

/**
 * The codec needs a part that this build leaves out.
 */
#define GW_ENCODE_NOT_BUILT 10

/**
 * A unit, a message or a count does not fit the wire format.
 */
#define GW_ENCODE_TOO_LARGE 11

/**
 * The units are not ascending, overlap or reach beyond the layout.
 */
#define GW_ENCODE_UNIT_OUT_OF_ORDER 12

/**
 * A value is finite but too large for the narrow format that it is sent in.
 */
#define GW_ENCODE_VALUE_OVERFLOW 13

/**
 * A codec of another crate refuses the values.
 */
#define GW_ENCODE_EXPERIMENT 14

/**
 * The bytes are not a frame of gradwire: another magic number.
 */
#define GW_DECODE_BAD_MAGIC 101

/**
 * The checksum in the header differs from that of the bytes.
 */
#define GW_DECODE_CHECKSUM_MISMATCH 102

/**
 * A field has a value that FORMAT.md does not allow.
 */
#define GW_DECODE_INVALID_FIELD 103

/**
 * An index is not inside its unit, or not above the one before it.
 */
#define GW_DECODE_INDEX_OUT_OF_RANGE 104

/**
 * The positions cannot be read without the shapes of the layout.
 */
#define GW_DECODE_LAYOUT_UNKNOWN 105

/**
 * The frame was made for another layout.
 */
#define GW_DECODE_LAYOUT_MISMATCH 106

/**
 * The frame asks for more than the limits allow.
 */
#define GW_DECODE_LIMIT_EXCEEDED 107

/**
 * A value of the frame is NaN or infinite.
 */
#define GW_DECODE_NON_FINITE_VALUE 108

/**
 * The frame needs a part that this build leaves out.
 */
#define GW_DECODE_NOT_BUILT 109

/**
 * The memory of the frame's object is too small for these bytes.
 */
#define GW_DECODE_SCRATCH_TOO_SMALL 110

/**
 * Bytes are left over after the frame or a section, or padding bits are not zero.
 */
#define GW_DECODE_TRAILING_BYTES 111

/**
 * The bytes end before the frame does.
 */
#define GW_DECODE_TRUNCATED 112

/**
 * The frame names a codec that this version does not know.
 */
#define GW_DECODE_UNKNOWN_CODEC 113

/**
 * A flag or a reserved bit is set that this version does not know.
 */
#define GW_DECODE_UNKNOWN_FLAG 114

/**
 * A unit reaches beyond the layout.
 */
#define GW_DECODE_UNIT_OUT_OF_RANGE 115

/**
 * The frame has a version of the format that this library does not read.
 */
#define GW_DECODE_UNSUPPORTED_VERSION 116

/**
 * A codec of another crate refuses the body of a unit.
 */
#define GW_DECODE_EXPERIMENT 117

/**
 * A void frame: its sender has no gradient in this step.
 */
#define GW_DECODE_VOID 118

/**
 * A pointer is null where none may be.
 */
#define GW_ERROR_NULL_POINTER 201

/**
 * A pointer is not aligned for what it points to.
 */
#define GW_ERROR_MISALIGNED 202

/**
 * A fault of the library. Only free the objects of this call; please report it.
 */
#define GW_ERROR_PANIC 203

/**
 * An array has another length than the layout, or more bytes than can be addressed.
 */
#define GW_ERROR_WRONG_LENGTH 204

/**
 * The spelling of the codec is wrong; gw_codec_explain says where.
 */
#define GW_ERROR_SPELLING 205

/**
 * The tensors have more elements than can be addressed.
 */
#define GW_ERROR_LAYOUT 206

/**
 * The memory for an object is smaller than its size function says.
 */
#define GW_ERROR_OBJECT_TOO_SMALL 207

/**
 * The pointer is not to an object of this kind: not made yet, freed, or of another kind.
 */
#define GW_ERROR_NOT_AN_OBJECT 208

/**
 * The object was made for another layout.
 */
#define GW_ERROR_WRONG_LAYOUT 209

/**
 * A number is outside the range that the description states.
 */
#define GW_ERROR_OUT_OF_RANGE 210

/**
 * This codec keeps nothing, so it has no memory: pass NULL for it.
 */
#define GW_ERROR_NOTHING_KEPT 211

/**
 * The object lies in the caller's memory, so there is nothing to free.
 */
#define GW_ERROR_NOT_ALLOCATED 212

/**
 * The system has no memory left.
 */
#define GW_ERROR_NO_HEAP 213

/**
 * Two buffers overlap that may not.
 */
#define GW_ERROR_OVERLAP 214

/**
 * The last encode did not fail at a coordinate.
 */
#define GW_ERROR_NO_SUCH_ERROR 215

/**
 * A text is not UTF-8.
 */
#define GW_ERROR_NOT_UTF8 216

/**
 * The codec has no such parameter.
 */
#define GW_ERROR_NOT_SUPPORTED 217

/**
 * The frame is not void.
 */
#define GW_ERROR_NOT_VOID 218

/**
 * No round has begun, or none is left.
 */
#define GW_ERROR_NO_ROUND 219

/**
 * The codec's payloads cannot be summed, so this route does not take it.
 */
#define GW_EXCHANGE_NOT_LINEAR 301

/**
 * The codec has rounds of sums and no frames, so only routes of sums take it.
 */
#define GW_EXCHANGE_NO_FRAMES 302

/**
 * The codec has rounds before its frame: only all-gather takes it.
 */
#define GW_EXCHANGE_ROUNDS_FIRST 303

/**
 * A codec for the way back of the mean, on a route without a server.
 */
#define GW_EXCHANGE_NO_DOWNLINK 304

/**
 * There are more ranks than the codec's payloads can sum.
 */
#define GW_EXCHANGE_TOO_MANY_WORKERS 305

/**
 * The codec sends every coordinate: the sparse route would gain nothing.
 */
#define GW_EXCHANGE_NOT_SPARSE 306

/**
 * A mean over senders does not exist here.
 */
#define GW_EXCHANGE_NO_SENDERS 307

/**
 * The codec keeps other things in the memory than the one before it.
 */
#define GW_EXCHANGE_OTHER_MEMORY 308

/**
 * The codec cannot follow the one before it.
 */
#define GW_EXCHANGE_CONFLICT 309

/**
 * A step is one message on this route.
 */
#define GW_EXCHANGE_ONE_MESSAGE 310

/**
 * Packets need a server that says which of them arrived.
 */
#define GW_EXCHANGE_PACKETS 311

/**
 * The norm cap is not a finite multiple of at least 1.
 */
#define GW_EXCHANGE_NORM_CAP 312

/**
 * A norm cap does not go with packets.
 */
#define GW_EXCHANGE_CAPPED_PACKETS 313

/**
 * The codec works between two neighbours and makes no mean over all.
 */
#define GW_EXCHANGE_GOSSIP 314

/**
 * The codec makes a mean over all ranks, not between two neighbours.
 */
#define GW_EXCHANGE_NOT_GOSSIP 315

/**
 * The step before this one is not over.
 */
#define GW_EXCHANGE_BUSY 316

/**
 * No step has begun, or the call before this one is not done.
 */
#define GW_EXCHANGE_NOT_STARTED 317

/**
 * The server could not encode the mean.
 */
#define GW_EXCHANGE_DOWNLINK 318

/**
 * The frame of a rank belongs to another step.
 */
#define GW_EXCHANGE_WRONG_STEP 319

/**
 * The frame of a rank has another codec, other units or another divisor.
 */
#define GW_EXCHANGE_WRONG_UNITS 320

/**
 * The mean is not finite.
 */
#define GW_EXCHANGE_NON_FINITE_MEAN 321

/**
 * The step is void: a rank reported that its gradient cannot be encoded.
 */
#define GW_EXCHANGE_VOID 322

/**
 * The payload of a rank is not finite.
 */
#define GW_EXCHANGE_NON_FINITE_PAYLOAD 323

/**
 * A rank refused a part of its coordinates, so there is no sum of them.
 */
#define GW_EXCHANGE_NO_SUM 324

/**
 * The step failed at a rank, and so at all of them.
 */
#define GW_EXCHANGE_NOT_AGREED 325

/**
 * A rank did not say how the step ended; here it is undone. Fetch the parameters anew.
 */
#define GW_EXCHANGE_UNDECIDED 326

/**
 * Too few frames reached the server in time.
 */
#define GW_EXCHANGE_NO_QUORUM 327

/**
 * The answer of the server makes no sense.
 */
#define GW_EXCHANGE_BAD_VERDICT 328

/**
 * Parts cannot be added one by one on this route.
 */
#define GW_EXCHANGE_NO_PARTS 329

/**
 * A part cannot be added.
 */
#define GW_EXCHANGE_BAD_PART 330

/**
 * A rank runs another version of the exchange.
 */
#define GW_EXCHANGE_OTHER_VERSION 331

/**
 * The program at a rank has said that it fails.
 */
#define GW_EXCHANGE_FAILED 332

/**
 * A message did not arrive in time.
 */
#define GW_EXCHANGE_TIMEOUT 351

/**
 * A message did not leave in time.
 */
#define GW_EXCHANGE_NO_ROOM 352

/**
 * A rank is gone.
 */
#define GW_EXCHANGE_DISCONNECTED 353

/**
 * The network has failed.
 */
#define GW_EXCHANGE_TRANSPORT 354

/**
 * The sender is not a member, or is this rank itself.
 */
#define GW_EXCHANGE_STRANGER 371

/**
 * The message belongs to another epoch.
 */
#define GW_EXCHANGE_OTHER_EPOCH 372

/**
 * The same sender has sent this tag before.
 */
#define GW_EXCHANGE_DUPLICATE 373

/**
 * The message belongs to a step that is over.
 */
#define GW_EXCHANGE_STALE 374

/**
 * Nobody has asked for the message yet, and its sender has sent too much ahead; hand it in later.
 */
#define GW_EXCHANGE_FULL 375

/**
 * The version of the library that is linked, to compare with GW_VERSION_NUMBER.
 *
 * Threads: any, at any time.
 */
uint32_t gw_version_number(void);

/**
 * The oldest version of the wire format that this library reads.
 *
 * Threads: any, at any time.
 */
uint32_t gw_format_version_min(void);

/**
 * The newest version of the wire format that this library reads, and the one that it writes.
 *
 * Threads: any, at any time.
 */
uint32_t gw_format_version_max(void);

/**
 * The name of a result, as this header spells it; "unknown" for a number without a name. The text is
 * static.
 *
 * Threads: any, at any time.
 */
const char *gw_result_name(gw_result result);

/**
 * What a result means, in a sentence. The text is static.
 *
 * Threads: any, at any time.
 */
const char *gw_result_text(gw_result result);

/* ======== Objects ======== */

/**
 * A codec with its memory and its units, as a spelling describes it: "topk:density=0.01,values=q8". See
 * docs/c.md for the codecs and their keys.
 *
 * Threads: many may read it at once; none may change it meanwhile.
 */
typedef struct gw_codec gw_codec;

/**
 * Makes the frames of one rank: a codec, a layout, and all working memory. It keeps nothing from step to
 * step; a gw_memory does.
 *
 * Threads: one at a time.
 */
typedef struct gw_encoder gw_encoder;

/**
 * The exchange of a rank: it turns the gradients of all ranks into one mean, the same bits at every
 * rank. It has no sockets, threads or clocks: you give it messages that arrived and the time, and it
 * gives you messages to send. The network is yours.
 *
 * A step: gw_exchange_begin; gw_exchange_encode until it says GW_DONE; gw_exchange_complete until it
 * says GW_DONE. Before each of these calls, send what gw_exchange_outgoing has. When one says
 * GW_WAITING, wait for a message and hand it in with gw_exchange_receive, or for the time of
 * gw_exchange_deadline. An error of encode or complete ends the step; whatever did not enter the mean is
 * back in the memory. gw_exchange_begin_in_parts begins a step whose parts are added as their gradients
 * come.
 *
 * Threads: one at a time.
 */
typedef struct gw_exchange gw_exchange;

/**
 * A frame that passed every check. What is done with it cannot fail for what it holds. It needs the
 * bytes that it was read from, which nobody may change.
 *
 * Threads: many may use it at once.
 */
typedef struct gw_frame gw_frame;

/**
 * The tensors of a gradient, whose values lie in one array, one tensor after the other. Both ends of a
 * wire have the same layout.
 *
 * Threads: many may use it at once.
 */
typedef struct gw_layout gw_layout;

/**
 * What a frame from a stranger may cost its reader. A frame that asks for more is refused, before any
 * work.
 *
 * Threads: many may read it at once; none may change it meanwhile.
 */
typedef struct gw_limits gw_limits;

/**
 * What a rank keeps from step to step: the part of its gradients that was not sent yet, and whatever
 * else its codec needs. Each rank has its own.
 *
 * Threads: one at a time.
 */
typedef struct gw_memory gw_memory;

/**
 * A frame whose header, checksum and structure are correct; positions and values were not checked. For
 * inspection: it needs no layout, no memory of its own, and time in proportion to the bytes. It needs
 * the bytes that it was read from, which nobody may change.
 *
 * Threads: many may use it at once.
 */
typedef struct gw_outline gw_outline;

/**
 * The rounds of one unit of a codec with GW_CAN_SUM, for programs that have an all-reduce of their own: that
 * of MPI, or NCCL. The exchange runs them by itself.
 *
 * For each unit: gw_rounds_begin; then, until gw_rounds_advance says that no round is left, replace what
 * gw_rounds_payload points to by its reduction over all ranks, and call gw_rounds_advance. Units whose
 * payloads travel at the same time need an object each.
 *
 * Threads: one at a time.
 */
typedef struct gw_rounds gw_rounds;

/* ======== Simple: codecs ======== */

/**
 * Makes frames: gw_encoder_init takes it.
 */
#define GW_CAN_ENCODE 1

/**
 * Its payloads can be summed by an all-reduce.
 */
#define GW_CAN_SUM 2

/**
 * Has a memory: gw_memory_init takes it.
 */
#define GW_CAN_KEEP 4

/**
 * Its memory has momentum.
 */
#define GW_CAN_MOMENTUM 8

/**
 * Sent + kept = residual + gradient, bit for bit.
 */
#define GW_CAN_EXACT 16

/**
 * Has a density: gw_codec_set_density takes it.
 */
#define GW_CAN_DENSITY 32

/**
 * The spelling asks for packets: gw_encode_packets takes its encoder.
 */
#define GW_CAN_PACKETS 64

/**
 * Allocates a codec. gw_codec_free frees it.
 *
 * Errors: as gw_codec_init, and GW_ERROR_NO_HEAP.
 */
gw_result gw_codec_new(const char *spelling, gw_codec **codec);

/**
 * Frees what gw_codec_new made. NULL is nothing to free.
 *
 * Errors: GW_ERROR_NOT_ALLOCATED for a codec in the caller's memory, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_codec_free(gw_codec *codec);

/**
 * Writes what is wrong with a spelling, in words: which key, and what is allowed. For a spelling without
 * fault it writes an empty text. Texts are cut off to `room` bytes with their zero byte; `*needed`,
 * which may be NULL, becomes the bytes of the whole.
 *
 * Errors: GW_ENCODE_BUFFER_TOO_SMALL when the text was cut off, GW_ERROR_NULL_POINTER,
 * GW_ERROR_NOT_UTF8.
 */
gw_result gw_codec_explain(const char *spelling,
                           char *out,
                           size_t room,
                           size_t *needed);

/**
 * Writes the spelling of a codec, in its shortest form, as gw_codec_explain writes its text.
 *
 * Errors: GW_ENCODE_BUFFER_TOO_SMALL, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_codec_spelling(const gw_codec *codec, char *out, size_t room, size_t *needed);

/**
 * What a codec can do: a sum of the constants GW_CAN_.
 *
 * Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_codec_capabilities(const gw_codec *codec, uint32_t *can);

/**
 * The share of the coordinates that the codec sends.
 *
 * Errors: GW_ERROR_NOT_SUPPORTED for a codec that has no density, GW_ERROR_NULL_POINTER,
 * GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_codec_density(const gw_codec *codec, double *density);

/**
 * Sets the share of the coordinates that the codec sends, from 1e-9 to 1. Encoders that were made of it
 * keep theirs: gw_encoder_set_density.
 *
 * Errors: GW_ERROR_NOT_SUPPORTED for a codec that has no density, GW_ERROR_OUT_OF_RANGE,
 * GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_codec_set_density(gw_codec *codec,
                               double density);

/* ======== Simple: layouts ======== */

/**
 * Allocates the layout of one vector of `elements` numbers. gw_layout_free frees it.
 *
 * Errors: GW_ERROR_NULL_POINTER, GW_ERROR_MISALIGNED, GW_ERROR_NO_HEAP.
 */
gw_result gw_layout_new_flat(size_t elements, gw_layout **layout);

/**
 * Allocates a layout of which only length and fingerprint are known, as gw_layout_init_opaque makes it.
 * gw_layout_free frees it.
 *
 * Errors: GW_ERROR_NULL_POINTER, GW_ERROR_MISALIGNED, GW_ERROR_NO_HEAP.
 */
gw_result gw_layout_new_opaque(size_t elements,
                               uint64_t fingerprint,
                               gw_layout **layout);

/**
 * Allocates a layout of `tensors` tensors. Tensor i has the name `names[i]` and `ranks[i]` dimensions;
 * `dims` has the dimensions of all tensors, one tensor after the other, `dim_count` numbers in all.
 * Everything is copied. `names` may be NULL: then no tensor has a name. gw_layout_free frees it.
 *
 * Errors: GW_ERROR_LAYOUT, GW_ERROR_WRONG_LENGTH when the ranks do not sum to `dim_count`,
 * GW_ERROR_NOT_UTF8, GW_ERROR_NULL_POINTER, GW_ERROR_MISALIGNED, GW_ERROR_NO_HEAP.
 */
gw_result gw_layout_new(size_t tensors,
                        const char *const *names,
                        const size_t *ranks,
                        const size_t *dims,
                        size_t dim_count,
                        gw_layout **layout);

/**
 * Frees what gw_layout_new, gw_layout_new_flat or gw_layout_new_opaque made. Encoders and memories that were
 * made of it must not be used any more. NULL is nothing to free.
 *
 * Errors: GW_ERROR_NOT_ALLOCATED for a layout in the caller's memory, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_layout_free(gw_layout *layout);

/**
 * Elements of all tensors together: the length of every gradient and sum.
 *
 * Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_layout_elements(const gw_layout *layout, size_t *elements);

/**
 * The fingerprint of the shapes, which every frame holds.
 *
 * Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_layout_fingerprint(const gw_layout *layout, uint64_t *fingerprint);

/* ======== Simple: memories ======== */

/**
 * Allocates a memory of zeros. gw_memory_free frees it.
 *
 * Errors: as gw_memory_init, and GW_ERROR_NO_HEAP.
 */
gw_result gw_memory_new(const gw_codec *codec, const gw_layout *layout, gw_memory **memory);

/**
 * Frees what gw_memory_new made. NULL is nothing to free.
 *
 * Errors: GW_ERROR_NOT_ALLOCATED for a memory in the caller's memory, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_memory_free(gw_memory *memory);

/**
 * Where the residual lies: what was not sent yet, one value for each element of the layout. It is there
 * to read, until the memory is used the next time.
 *
 * Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_memory_residual(const gw_memory *memory,
                             const float **residual,
                             size_t *count);

/**
 * The Euclidean norm of the residual.
 *
 * Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_memory_norm(const gw_memory *memory, double *norm);

/**
 * Adds what a frame holds to the residual again: for a frame of this rank that did not enter the mean.
 * Right after the gw_encode that made it, this restores residual + gradient.
 *
 * Errors: GW_ERROR_WRONG_LAYOUT, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_memory_give_back(gw_memory *memory,
                              const gw_frame *frame);

/**
 * Adds a gradient to the residual that was not encoded, because the step failed earlier.
 *
 * Errors: GW_ENCODE_NON_FINITE_INPUT, with nothing changed; GW_ERROR_WRONG_LENGTH, GW_ERROR_OVERLAP when
 * the values are the residual itself, GW_ERROR_NULL_POINTER, GW_ERROR_MISALIGNED,
 * GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_memory_keep(gw_memory *memory,
                         const float *values,
                         size_t count);

/**
 * Multiplies the residual by a finite number: by the ratio of the learning rates, old to new, when that
 * changes.
 *
 * Errors: GW_ERROR_OUT_OF_RANGE also where a product would not be finite, with nothing changed;
 * GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_memory_rescale(gw_memory *memory,
                            float ratio);

/**
 * Multiplies the residual by a factor from 0 to 1, so that what waits for long weighs less. What decays
 * is lost. An exchange does it where the codec's spelling has `decay=`; who encodes without one calls this
 * once a step.
 *
 * Errors: GW_ERROR_OUT_OF_RANGE, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_memory_decay(gw_memory *memory,
                          float factor);

/**
 * Sets everything to zeros, as before the first step.
 *
 * Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_memory_clear(gw_memory *memory);

/**
 * Writes the memory to `out`, to load it in another process. `*written` becomes its bytes. Any machine
 * and the Python package read them too.
 *
 * Errors: GW_ENCODE_BUFFER_TOO_SMALL: `*written` is then the bytes that are needed. GW_ENCODE_TOO_LARGE,
 * GW_ERROR_OVERLAP, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_memory_save(const gw_memory *memory,
                         uint8_t *out,
                         size_t room,
                         size_t *written);

/**
 * Reads what gw_memory_save wrote, into a memory of the same codec and layout. On an error it is as it
 * was.
 *
 * Errors: those of reading bytes, GW_DECODE_ among them GW_DECODE_LAYOUT_MISMATCH, and
 * GW_DECODE_INVALID_FIELD for a memory of other parts. GW_ERROR_OVERLAP, GW_ERROR_NULL_POINTER,
 * GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_memory_load(gw_memory *memory,
                         const uint8_t *bytes,
                         size_t byte_count);

/**
 * Moves what `from` holds to `into`, a memory of another layout: for a model whose tensors were added,
 * removed, renamed or put in another order. Each tensor moves to the one of its name and shape; what has
 * no place is dropped, and what is new begins with zeros. What `into` held is overwritten. `*kept` and
 * `*dropped` become the elements that moved and that had no place, `*dropped_norm` the Euclidean norm of
 * what was lost; each may be NULL.
 *
 * Errors: GW_ENCODE_MEMORY_INCOMPLETE when only one has momentum, GW_ERROR_OVERLAP when both are the
 * same, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_memory_remap(const gw_memory *from,
                          gw_memory *into,
                          size_t *kept,
                          size_t *dropped,
                          double *dropped_norm);

/* ======== Simple: encoding ======== */

/**
 * gw_frame_bound as a constant, for arrays.
 */
#define GW_FRAME_BOUND(elements) ((size_t)(elements) * 8 + 2048)

/**
 * The most bytes of a void frame.
 */
#define GW_VOID_BYTES 44

/**
 * In place of a rank: draws that every rank repeats in the same way.
 */
#define GW_ALL_RANKS 4294967295

/**
 * Ranks are below this, because a draw has 30 bits for them.
 */
#define GW_RANKS 1073741823

/**
 * Called with each packet, which is there until it returns.
 */
typedef void (*gw_packet_visitor)(void *context, const uint8_t *packet, size_t bytes);

/**
 * Allocates an encoder. gw_encoder_free frees it.
 *
 * Errors: as gw_encoder_init, and GW_ERROR_NO_HEAP.
 */
gw_result gw_encoder_new(const gw_codec *codec, const gw_layout *layout, gw_encoder **encoder);

/**
 * Frees what gw_encoder_new made. NULL is nothing to free.
 *
 * Errors: GW_ERROR_NOT_ALLOCATED for an encoder in the caller's memory, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_encoder_free(gw_encoder *encoder);

/**
 * Sets who draws and from which seed: codecs that draw random numbers draw different ones for each seed,
 * step and rank. All ranks of a run have one seed.
 *
 * Errors: GW_ERROR_OUT_OF_RANGE for a rank that is neither below GW_RANKS nor GW_ALL_RANKS,
 * GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_encoder_set_source(gw_encoder *encoder,
                                uint64_t seed,
                                uint32_t rank);

/**
 * Says with every frame how its mean is to be formed: 0 divides each sum by the number of ranks, which
 * is the default; 1 divides each coordinate by the number of frames that held it.
 *
 * Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_encoder_set_divide_by_senders(gw_encoder *encoder,
                                           uint32_t senders);

/**
 * The most bytes of a frame of `elements` numbers in one unit, by any codec: the macro GW_FRAME_BOUND as
 * a function. With `unit=tensor`, ask gw_encoder_frame_bound.
 *
 * Threads: any, at any time.
 */
size_t gw_frame_bound(size_t elements);

/**
 * Encodes a gradient of `count` values, as many as the layout has, into a frame at `out`, which has room
 * for `room` bytes. `*written` becomes the bytes of the frame.
 *
 * With a memory, what is encoded is residual + gradient, and the memory keeps what the frame does not
 * hold. A codec with GW_CAN_KEEP needs one; for any other it is NULL. On an error the memory is as it
 * was, bit for bit.
 *
 * Errors: GW_ENCODE_BUFFER_TOO_SMALL: `*written` is then the bytes that always suffice.
 * GW_ENCODE_NON_FINITE_INPUT and GW_ENCODE_VALUE_OVERFLOW: gw_encoder_error_index says where, and
 * gw_encode_void writes what to send instead. GW_ENCODE_MEMORY_REFUSED, GW_ENCODE_MEMORY_INCOMPLETE,
 * GW_ENCODE_TOO_LARGE. GW_ERROR_WRONG_LENGTH for another `count`, GW_ERROR_WRONG_LAYOUT for a memory of
 * another layout, GW_ERROR_OVERLAP when `out` overlaps the values, GW_ERROR_NULL_POINTER,
 * GW_ERROR_MISALIGNED, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_encode(gw_encoder *encoder,
                    uint64_t step,
                    const float *values,
                    size_t count,
                    gw_memory *memory,
                    uint8_t *out,
                    size_t room,
                    size_t *written);

/**
 * The coordinate that the last encode failed at, counted from the start of the layout.
 *
 * Errors: GW_ERROR_NO_SUCH_ERROR when it succeeded, or failed for another reason, GW_ERROR_NULL_POINTER,
 * GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_encoder_error_index(const gw_encoder *encoder,
                                 size_t *index);

/**
 * Why the last encode failed, in words and with its numbers; an empty text if it succeeded. As
 * gw_codec_explain.
 *
 * Errors: GW_ENCODE_BUFFER_TOO_SMALL, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_encoder_error_text(const gw_encoder *encoder, char *out, size_t room, size_t *needed);

/**
 * Writes a void frame, after an encode that a value of the gradient failed: the message that tells the
 * other ranks not to wait, and why. `room` is at least GW_VOID_BYTES.
 *
 * Errors: GW_ENCODE_BUFFER_TOO_SMALL: `*written` is then the bytes that suffice. GW_ERROR_NO_SUCH_ERROR
 * when the last encode did not fail at a value, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_encode_void(const gw_encoder *encoder,
                         uint8_t *out,
                         size_t room,
                         size_t *written);

/**
 * As gw_encode, for values in half precision (IEEE binary16), as their bits.
 *
 * Errors: as gw_encode.
 */
gw_result gw_encode_f16(gw_encoder *encoder,
                        uint64_t step,
                        const uint16_t *values,
                        size_t count,
                        gw_memory *memory,
                        uint8_t *out,
                        size_t room,
                        size_t *written);

/**
 * As gw_encode, for values in bfloat16, as their bits.
 *
 * Errors: as gw_encode.
 */
gw_result gw_encode_bf16(gw_encoder *encoder,
                         uint64_t step,
                         const uint16_t *values,
                         size_t count,
                         gw_memory *memory,
                         uint8_t *out,
                         size_t room,
                         size_t *written);

/**
 * Encodes a gradient as several frames of at most the bytes that the spelling states
 * ("max_packet_bytes=1200"), for links that lose packets. Each is a frame of its own: any of them can be
 * read and added without the others. Calls `visit` with each, in order; it must not use the encoder or
 * the memory. `out` is where packets are made; its `room` is at least that of one packet. `*written`
 * becomes the bytes of all packets together. A packet that is lost can be given back:
 * gw_memory_give_back.
 *
 * Errors: as gw_encode, GW_ENCODE_NO_PACKETS for a codec without GW_CAN_PACKETS,
 * GW_ENCODE_PACKET_TOO_SMALL. No packet was made then. After GW_ENCODE_BUFFER_TOO_SMALL, `*written` is the
 * room that is needed.
 */
gw_result gw_encode_packets(gw_encoder *encoder,
                            uint64_t step,
                            const float *values,
                            size_t count,
                            gw_memory *memory,
                            uint8_t *out,
                            size_t room,
                            gw_packet_visitor visit,
                            void *context,
                            size_t *written);

/**
 * Sets the share of the coordinates that is sent from now on.
 *
 * Errors: GW_ENCODE_SCRATCH_TOO_SMALL when the encoder was made for less, GW_ERROR_NOT_SUPPORTED for a
 * codec that has no density, GW_ERROR_OUT_OF_RANGE outside of 1e-9 to 1, GW_ERROR_NULL_POINTER,
 * GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_encoder_set_density(gw_encoder *encoder,
                                 double density);

/**
 * Sets the epoch, counted from 0: the density is then that of the warm-up that the spelling asks for.
 *
 * Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_encoder_set_epoch(gw_encoder *encoder,
                               uint64_t epoch);

/**
 * The most bytes that a frame of this encoder can have, whatever the gradient.
 *
 * Errors: GW_ENCODE_TOO_LARGE when no frame could hold it, GW_ERROR_NULL_POINTER,
 * GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_encoder_frame_bound(const gw_encoder *encoder, size_t *bytes);

/* ======== Simple: reading ======== */

/**
 * Bytes of a header: what gw_frame_length needs.
 */
#define GW_HEADER_BYTES 24

/**
 * Called with each value of a frame, and its place in the gradient.
 */
typedef void (*gw_value_visitor)(void *context, size_t index, float value);

/**
 * Reads a frame, checks all of it, and adds `weight` times its values to a sum: gw_frame_new,
 * gw_frame_add and gw_frame_free in one. On an error the sum is as it was.
 *
 * Errors: as gw_frame_new and gw_frame_add. Threads: any, at any time.
 */
gw_result gw_add(const uint8_t *bytes,
                 size_t byte_count,
                 const gw_layout *layout,
                 float weight,
                 float *sum,
                 size_t count);

/**
 * Allocates and reads a frame. gw_frame_free frees it.
 *
 * Errors: as gw_frame_init, and GW_ERROR_NO_HEAP.
 */
gw_result gw_frame_new(const uint8_t *bytes,
                       size_t byte_count,
                       const gw_layout *layout,
                       const gw_limits *limits,
                       gw_frame **frame);

/**
 * Frees what gw_frame_new made. NULL is nothing to free.
 *
 * Errors: GW_ERROR_NOT_ALLOCATED for a frame in the caller's memory, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_frame_free(gw_frame *frame);

/**
 * Of the bytes of a stream that begin a frame, GW_HEADER_BYTES at least: how many bytes the whole frame
 * has. The number comes from the sender; compare it with what you are ready to read.
 *
 * Errors: GW_DECODE_TRUNCATED for fewer bytes than a header, GW_DECODE_BAD_MAGIC,
 * GW_DECODE_UNSUPPORTED_VERSION, GW_DECODE_UNKNOWN_CODEC, GW_DECODE_UNKNOWN_FLAG,
 * GW_DECODE_INVALID_FIELD, GW_ERROR_NULL_POINTER. Threads: any.
 */
gw_result gw_frame_length(const uint8_t *bytes,
                          size_t byte_count,
                          uint64_t *length);

/**
 * The step that the frame belongs to.
 *
 * Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_frame_step(const gw_frame *frame, uint64_t *step);

/**
 * Adds `weight` times every value of the frame to a sum of `count` values, as many as the layout has:
 * coordinates ascending, each product and each sum rounded once. To have the same sum at all ranks, add
 * the frames in the order of the ranks.
 *
 * Errors: GW_ERROR_WRONG_LENGTH, GW_ERROR_NULL_POINTER, GW_ERROR_MISALIGNED, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_frame_add(const gw_frame *frame,
                       float weight,
                       float *sum,
                       size_t count);

/**
 * Calls `visit` with every value that the frame holds, places ascending.
 *
 * Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_frame_each(const gw_frame *frame, gw_value_visitor visit, void *context);

/**
 * Reads a void frame: the sender has no gradient in `*step`, because of the value at `*index`. Each may
 * be NULL.
 *
 * Errors: GW_ERROR_NOT_VOID for any other frame, GW_DECODE_: what is wrong with the bytes,
 * GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_void_read(const uint8_t *bytes,
                       size_t byte_count,
                       const gw_layout *layout,
                       uint64_t *step,
                       size_t *index);

/* ======== Memory and buffers of your own ======== */

/**
 * What every object's memory must be aligned to. What malloc returns is.
 */
#define GW_ALIGNMENT 8

/**
 * Bytes of a codec.
 *
 * Threads: any, at any time.
 */
size_t gw_codec_size(void);

/**
 * Bytes of a layout.
 *
 * Threads: any, at any time.
 */
size_t gw_layout_size(void);

/**
 * Makes the layout of one vector of `elements` numbers, in the caller's memory.
 *
 * Errors: those of every object.
 */
gw_result gw_layout_init(void *memory, size_t size, size_t elements, gw_layout **layout);

/**
 * Makes a layout of which only length and fingerprint are known, in the caller's memory: to read a frame
 * from a file. gw_outline_extent and gw_outline_fingerprint say them of a frame. Frames that need the
 * shapes are then GW_DECODE_LAYOUT_UNKNOWN.
 *
 * Errors: those of every object.
 */
gw_result gw_layout_init_opaque(void *memory,
                                size_t size,
                                size_t elements,
                                uint64_t fingerprint,
                                gw_layout **layout);

/**
 * Bytes of limits.
 *
 * Threads: any, at any time.
 */
size_t gw_limits_size(void);

/**
 * Makes the limits that stand where NULL is passed for them, in the caller's memory: the most that an
 * honest frame of the layout can need. The setters below change them.
 *
 * Errors: those of every object.
 */
gw_result gw_limits_init(void *memory,
                         size_t size,
                         const gw_layout *layout,
                         gw_limits **limits);

/**
 * Makes a codec of a spelling, in the caller's memory. The spelling is not needed afterwards.
 *
 * Errors: GW_ERROR_SPELLING (gw_codec_explain says what is wrong), GW_ERROR_NOT_UTF8, and those of every
 * object: GW_ERROR_NULL_POINTER, GW_ERROR_MISALIGNED, GW_ERROR_OBJECT_TOO_SMALL.
 */
gw_result gw_codec_init(void *memory,
                        size_t size,
                        const char *spelling,
                        gw_codec **codec);

/**
 * Bytes of an encoder for this codec and layout.
 *
 * Errors: GW_ENCODE_NO_FRAMES for a codec without GW_CAN_ENCODE, GW_ERROR_NOT_SUPPORTED for the key
 * `clip` (leave it out, and shorten gradients to a norm of at most clip divided by the root of the
 * number of ranks), GW_ERROR_WRONG_LENGTH when they cannot be addressed, GW_ERROR_NULL_POINTER,
 * GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_encoder_size(const gw_codec *codec, const gw_layout *layout, size_t *bytes);

/**
 * Makes an encoder in the caller's memory, for rank 0 and seed 0. The codec is copied; the layout must
 * stay.
 *
 * Errors: as gw_encoder_size, and those of every object.
 */
gw_result gw_encoder_init(void *memory,
                          size_t size,
                          const gw_codec *codec,
                          const gw_layout *layout,
                          gw_encoder **encoder);

/**
 * Bytes of the object for a frame. `limits` may be NULL: then they are those that gw_limits_init makes.
 * Never more than they allow.
 *
 * Errors: GW_DECODE_: everything that is wrong with the bytes, except for positions and values.
 * GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_frame_size(const uint8_t *bytes,
                        size_t byte_count,
                        const gw_layout *layout,
                        const gw_limits *limits,
                        size_t *size);

/**
 * Reads a frame and checks all of it, into the caller's memory. The bytes must stay as they are for as
 * long as the frame is used.
 *
 * Errors: GW_DECODE_: everything that is wrong with the bytes; GW_DECODE_VOID for a void frame, which
 * gw_void_read reads; and those of every object.
 */
gw_result gw_frame_init(void *memory,
                        size_t size,
                        const uint8_t *bytes,
                        size_t byte_count,
                        const gw_layout *layout,
                        const gw_limits *limits,
                        gw_frame **frame);

/**
 * Bytes of a memory for this codec and layout.
 *
 * Errors: GW_ERROR_NOTHING_KEPT for a codec without GW_CAN_KEEP, GW_ERROR_WRONG_LENGTH when they cannot
 * be addressed, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_memory_size(const gw_codec *codec,
                         const gw_layout *layout,
                         size_t *bytes);

/**
 * Makes a memory of zeros in the caller's memory. The layout must stay; the codec is not needed
 * afterwards.
 *
 * Errors: as gw_memory_size, and those of every object.
 */
gw_result gw_memory_init(void *at,
                         size_t size,
                         const gw_codec *codec,
                         const gw_layout *layout,
                         gw_memory **memory);

/**
 * Bytes of an outline.
 *
 * Threads: any, at any time.
 */
size_t gw_outline_size(void);

/**
 * Reads the outline of a frame, into the caller's memory. `limits` may be NULL: then there are none.
 *
 * Errors: GW_DECODE_: what is wrong with the bytes, except for positions and values; GW_DECODE_VOID for
 * a void frame; and those of every object.
 */
gw_result gw_outline_init(void *memory,
                          size_t size,
                          const uint8_t *bytes,
                          size_t byte_count,
                          const gw_limits *limits,
                          gw_outline **outline);

/**
 * Bytes of an object for the rounds of any unit of this codec and layout, over so many ranks.
 *
 * Errors: GW_EXCHANGE_NOT_LINEAR for a codec without GW_CAN_SUM, GW_ERROR_OUT_OF_RANGE for no ranks, or for
 * more than the payloads can sum, GW_ERROR_WRONG_LENGTH when the bytes cannot be addressed,
 * GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_rounds_size(const gw_codec *codec,
                         const gw_layout *layout,
                         uint32_t workers,
                         size_t *bytes);

/**
 * Makes the object in the caller's memory, for so many ranks, as rank 0 and with seed 0. The codec is
 * copied; the layout must stay.
 *
 * Errors: as gw_rounds_size, and those of every object.
 */
gw_result gw_rounds_init(void *memory,
                         size_t size,
                         const gw_codec *codec,
                         const gw_layout *layout,
                         uint32_t workers,
                         gw_rounds **rounds);

/* ======== Exchange ======== */

/**
 * A piece of work was done. Send what is queued, and call again.
 */
#define GW_WORKED 0

/**
 * A message is missing, or one has not left. Call again when one came or left, or at the deadline.
 */
#define GW_WAITING 1

/**
 * All of it is done.
 */
#define GW_DONE 2

/**
 * Time that never comes.
 */
#define GW_NEVER UINT64_MAX

/**
 * Bytes of a tag: which message of which step this is. It travels with the message, as it is.
 */
#define GW_TAG_BYTES 20

/**
 * Frames or sums of the part are missing.
 */
#define GW_PART_TRAVELLING 0

/**
 * Its mean is there. It must not be used if the step fails.
 */
#define GW_PART_COMPLETE 1

/**
 * The step has failed before its mean was there. Its values are NaN.
 */
#define GW_PART_VOID 2

/**
 * The most bytes that a rank says with a part.
 */
#define GW_MOST_SAID 16384

/**
 * A sum where the codec allows it, a server for packets, else all-gather.
 */
#define GW_ROUTE_BEST 0

/**
 * Every rank sends its frame to every other.
 */
#define GW_ROUTE_ALL_GATHER 1

/**
 * Every rank sums a part of the coordinates and sends the sums to all: for sparse codecs.
 */
#define GW_ROUTE_SPARSE 2

/**
 * Payloads are summed along a ring: for codecs with GW_CAN_SUM.
 */
#define GW_ROUTE_RING 3

/**
 * Payloads are summed along a tree: the same, for short payloads.
 */
#define GW_ROUTE_TREE 4

/**
 * Rank 0 is a member that receives all frames and answers with the mean, as f32. With packets, a step needs
 * the frames of rank 0 alone. gw_exchange_new_server has another server, and another codec for the way back.
 */
#define GW_ROUTE_SERVER 5

/**
 * Payloads are summed by the ranks, each a segment: two messages wait for each other instead of two for each
 * rank, as on a ring. For codecs with GW_CAN_SUM.
 */
#define GW_ROUTE_OWNERS 6

/**
 * Frees an exchange. NULL is nothing to free.
 *
 * Errors: GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_exchange_free(gw_exchange *exchange);

/**
 * Begins a step of the ranks `members`, in any order, this rank among them. `epoch` grows with every
 * change of the members. `fail_stop` is not 0 where every message arrives unless the run ends for all,
 * as over TCP connections that nobody opens again; else all ranks vote at the end of a step. The
 * gradient must be encoded at the time `by`. Time is in nanoseconds from any moment that stays the same;
 * GW_NEVER is never.
 *
 * The memory, NULL for a codec without GW_CAN_KEEP, must stay until the step is over, and nobody else
 * may use it. All ranks begin the same steps in the same order, with the same seed.
 *
 * Errors: GW_EXCHANGE_BUSY during a step, GW_ERROR_OUT_OF_RANGE for a rank that is not among the members
 * or not below GW_RANKS, GW_ENCODE_MEMORY_INCOMPLETE without the memory,
 * GW_ERROR_WRONG_LAYOUT, GW_ERROR_NULL_POINTER, GW_ERROR_MISALIGNED, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_exchange_begin(gw_exchange *exchange,
                            uint32_t rank,
                            const uint32_t *members,
                            size_t member_count,
                            uint32_t epoch,
                            uint32_t fail_stop,
                            uint64_t seed,
                            uint64_t step,
                            gw_memory *memory,
                            uint64_t now,
                            uint64_t by);

/**
 * Encodes and sends, piece by piece. `*progress` becomes GW_WORKED, GW_WAITING or GW_DONE. The values
 * are the same in every call of a step, as many as the layout has.
 *
 * Errors: they end the step, except for GW_ERROR_ and GW_EXCHANGE_NOT_STARTED. As gw_encode, and
 * GW_EXCHANGE_. gw_exchange_error_text says more.
 */
gw_result gw_exchange_encode(gw_exchange *exchange,
                             const float *values,
                             size_t count,
                             uint64_t now,
                             uint32_t *progress);

/**
 * Receives, adds and divides, piece by piece. `*progress` becomes GW_WORKED, GW_WAITING or GW_DONE: then
 * the mean of all ranks is in `mean`, as many values as the layout has. `mean` is the same in every call
 * of a step. The first call sets the time by which the mean must be there, `by`.
 *
 * Errors: as gw_exchange_encode. GW_EXCHANGE_NOT_STARTED before gw_exchange_encode is done.
 */
gw_result gw_exchange_complete(gw_exchange *exchange,
                               float *mean,
                               size_t count,
                               uint64_t now,
                               uint64_t by,
                               uint32_t *progress);

/**
 * Of the last step that is done: how many ranks are in the mean, the bytes of this rank's frame or
 * payload, and the coordinates that it sent. Each may be NULL.
 *
 * Errors: GW_EXCHANGE_NOT_STARTED without a step, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_exchange_report(const gw_exchange *exchange,
                             size_t *contributors,
                             size_t *frame_bytes,
                             size_t *sent_values);

/**
 * Why the last step failed, in words, with the rank that caused it; an empty text if it did not. As
 * gw_codec_explain.
 *
 * Errors: GW_ENCODE_BUFFER_TOO_SMALL, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_exchange_error_text(const gw_exchange *exchange,
                                 char *out,
                                 size_t room,
                                 size_t *needed);

/**
 * The next message to send: its number, its receiver, its tag of GW_TAG_BYTES and its bytes. `*bytes` is
 * NULL if nothing is queued. The bytes stay where they are until gw_exchange_sent, gw_exchange_no_room or
 * gw_exchange_not_sent is called with the number, or the step is over.
 *
 * Errors: GW_ERROR_NULL_POINTER, GW_ERROR_MISALIGNED, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_exchange_outgoing(const gw_exchange *exchange,
                               uint64_t *number,
                               uint32_t *to,
                               uint8_t *tag,
                               const uint8_t **bytes,
                               size_t *byte_count);

/**
 * The message of that number has left.
 *
 * Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_exchange_sent(gw_exchange *exchange, uint64_t number);

/**
 * There is no room for the message of that number now. Others may leave meanwhile; after
 * gw_exchange_retry it is tried again.
 *
 * Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_exchange_no_room(gw_exchange *exchange, uint64_t number, uint64_t now);

/**
 * There may be room again for messages that found none.
 *
 * Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_exchange_retry(gw_exchange *exchange);

/**
 * The network can never send the message of that number to `to`. The step fails.
 *
 * Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_exchange_not_sent(gw_exchange *exchange, uint64_t number, uint32_t to);

/**
 * Takes a message that arrived: who sent it, its tag, its bytes. In any order, early ones too; it is
 * copied. The order of arrival never changes the mean.
 *
 * Errors: why it is not taken; the step goes on. GW_EXCHANGE_STRANGER, GW_EXCHANGE_OTHER_EPOCH,
 * GW_EXCHANGE_DUPLICATE, GW_EXCHANGE_STALE: drop it. GW_EXCHANGE_FULL: nobody asked for it yet, and its
 * sender has sent too much ahead; hand it in again later. GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_exchange_receive(gw_exchange *exchange,
                              uint32_t from,
                              const uint8_t *tag,
                              const uint8_t *bytes,
                              size_t byte_count);

/**
 * Message number `i` of those that the exchange waits for now, counted from 0, the most urgent first: its
 * sender and its tag. For networks that wait for messages by name; any other message may be handed in too.
 * With `*count` above 1, so many messages are meant, whose tags differ in the last four bytes only: they
 * count up from there, little-endian.
 *
 * Errors: GW_ERROR_OUT_OF_RANGE for a number from which on nothing is waited for, GW_ERROR_NULL_POINTER,
 * GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_exchange_wanted(gw_exchange *exchange,
                             size_t i,
                             uint32_t *from,
                             uint8_t *tag,
                             uint32_t *count);

/**
 * When to call again, even if nothing arrives.
 *
 * Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_exchange_deadline(const gw_exchange *exchange, uint64_t *time);

/**
 * Nothing more comes from a rank. Its messages that arrived still count.
 *
 * Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_exchange_peer_lost(gw_exchange *exchange, uint32_t rank);

/**
 * Of a network that waits by name: none of the messages that gw_exchange_wanted named last comes from that
 * rank any more. Other messages of it may have arrived.
 *
 * Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_exchange_not_here(gw_exchange *exchange,
                               uint32_t rank);

/**
 * The network has failed: so does the step.
 *
 * Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_exchange_network_failed(gw_exchange *exchange);

/**
 * The program has failed in code of its own. Call gw_exchange_complete until it returns
 * GW_EXCHANGE_FAILED: then all other ranks are told, in the same step, with this text, of which 512 bytes
 * travel. Whatever was encoded goes back to the memory. Without a step in progress, and once this rank has
 * voted for its mean, the call does nothing. Where ranks do not vote (`fail_stop`), the others are told up
 * to the point where all is encoded.
 *
 * Errors: GW_ERROR_NOT_UTF8, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_exchange_fail(gw_exchange *exchange,
                           const char *why);

/**
 * How many units a gradient has, as the codec's spelling cuts it: parts are made of them, and name them by
 * their numbers, from 0.
 *
 * Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_exchange_units(const gw_exchange *exchange,
                            size_t *units);

/**
 * The place of a unit in the gradient. Each of the last two may be NULL.
 *
 * Errors: GW_ERROR_OUT_OF_RANGE for a unit that is not there, GW_ERROR_NULL_POINTER,
 * GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_exchange_unit(const gw_exchange *exchange,
                           uint32_t unit,
                           size_t *start,
                           size_t *elements);

/**
 * Begins a step whose parts are added one by one, as their gradients come: as gw_exchange_begin, then
 * gw_exchange_add for each part and gw_exchange_advance in between, and gw_exchange_complete at the end.
 * There is no gw_exchange_encode. All ranks add the same units in the same order, and vote at the end.
 *
 * Errors: as gw_exchange_begin; GW_EXCHANGE_NO_PARTS for routes other than GW_ROUTE_ALL_GATHER,
 * GW_ROUTE_SPARSE and GW_ROUTE_OWNERS; GW_EXCHANGE_ROUNDS_FIRST for a codec that needs all of the gradient.
 */
gw_result gw_exchange_begin_in_parts(gw_exchange *exchange,
                                     uint32_t rank,
                                     const uint32_t *members,
                                     size_t member_count,
                                     uint32_t epoch,
                                     uint32_t fail_stop,
                                     uint64_t seed,
                                     uint64_t step,
                                     gw_memory *memory,
                                     uint64_t now,
                                     uint64_t by);

/**
 * Adds a part: encodes it, and queues its first messages. `units` are the numbers of its units, ascending,
 * none of which was in an earlier part. Of these, `lacks` are those of which this rank has no gradient: a
 * frame holds nothing of them and the residual stays, and a sum takes them as zeros. `says` are bytes for
 * the program at every other rank, GW_MOST_SAID at most: see gw_exchange_said. `values` is the whole
 * gradient, as many values as the layout has, of which only the units of the part are read, in this call.
 * `*part` becomes the number of the part, from 0; NULL if it is not wanted.
 *
 * Errors: GW_EXCHANGE_BAD_PART, and the step goes on as if there had been no call; gw_exchange_error_text
 * says what is wrong. GW_EXCHANGE_NOT_STARTED without gw_exchange_begin_in_parts. GW_ERROR_WRONG_LENGTH,
 * GW_ERROR_OVERLAP when the values are the residual, GW_ERROR_NULL_POINTER, GW_ERROR_MISALIGNED,
 * GW_ERROR_NOT_AN_OBJECT. If the gradient cannot be encoded, gw_exchange_complete says so.
 */
gw_result gw_exchange_add(gw_exchange *exchange,
                          const uint32_t *units,
                          size_t unit_count,
                          const uint32_t *lacks,
                          size_t lack_count,
                          const uint8_t *says,
                          size_t says_bytes,
                          const float *values,
                          size_t count,
                          uint64_t now,
                          size_t *part);

/**
 * Does one piece of the work on the parts that were added. `*progress` becomes GW_WORKED, GW_WAITING, or
 * GW_DONE once the mean of each is in `mean`, which is the same in every call of a step, as many values as
 * the layout has: call again after the next gw_exchange_add. If the step fails, whatever has no mean yet
 * becomes NaN, and gw_exchange_complete says why.
 *
 * Errors: GW_EXCHANGE_NOT_STARTED without gw_exchange_begin_in_parts, or once gw_exchange_complete was
 * called; GW_ERROR_WRONG_LENGTH, GW_ERROR_OVERLAP when the mean is the residual, GW_ERROR_NULL_POINTER,
 * GW_ERROR_MISALIGNED, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_exchange_advance(gw_exchange *exchange,
                              float *mean,
                              size_t count,
                              uint64_t now,
                              uint32_t *progress);

/**
 * How far a part of the last step is: `*state` becomes GW_PART_TRAVELLING, GW_PART_COMPLETE or
 * GW_PART_VOID. The mean of a part has the same bits at all ranks, but only gw_exchange_complete says
 * whether the step holds.
 *
 * Errors: GW_ERROR_OUT_OF_RANGE for a part that is not there, GW_ERROR_NULL_POINTER,
 * GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_exchange_part(const gw_exchange *exchange,
                           size_t part,
                           uint32_t *state);

/**
 * What a rank said with a part of the last step that is complete: `*byte_count` bytes at `*bytes`, which
 * stay until the next call that changes the exchange.
 *
 * Errors: GW_ERROR_OUT_OF_RANGE for a rank that is no member, and for a part that is not complete,
 * GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_exchange_said(const gw_exchange *exchange,
                           size_t part,
                           uint32_t rank,
                           const uint8_t **bytes,
                           size_t *byte_count);

/**
 * Allocates an exchange of gradients of that layout by a codec, on a route. Both are copied.
 * gw_exchange_free frees it. Its buffers grow in the first step. A layout for which 32 bytes an element
 * cannot be had is refused here, because a step that finds no memory ends the program.
 *
 * Errors: GW_ERROR_OUT_OF_RANGE for a route that GW_ROUTE_ does not name, GW_EXCHANGE_NOT_LINEAR,
 * GW_EXCHANGE_NO_FRAMES, GW_EXCHANGE_NOT_SPARSE, GW_EXCHANGE_GOSSIP and GW_EXCHANGE_PACKETS for a codec
 * that the route does not take, GW_ERROR_NOT_SUPPORTED for the key `clip`, GW_ERROR_LAYOUT for a layout
 * of gw_layout_init_opaque, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT, GW_ERROR_NO_HEAP, and
 * GW_ERROR_WRONG_LENGTH for a layout that cannot be addressed.
 */
gw_result gw_exchange_new(const gw_codec *codec,
                          const gw_layout *layout,
                          uint32_t route,
                          gw_exchange **exchange);

/**
 * As gw_exchange_new, for steps in at most `messages` parts of neighbouring units: while the messages of one
 * travel, the next is encoded. The mean has the same bits. For codecs with several units, such as those with
 * `unit=tensor`.
 *
 * Errors: as gw_exchange_new; GW_EXCHANGE_ONE_MESSAGE for a server and for GW_ROUTE_TREE,
 * GW_ERROR_OUT_OF_RANGE for 0.
 */
gw_result gw_exchange_new_pipelined(const gw_codec *codec,
                                    const gw_layout *layout,
                                    uint32_t route,
                                    size_t messages,
                                    gw_exchange **exchange);

/**
 * As gw_exchange_new with GW_ROUTE_SERVER, for a server of any rank, which sends the mean back by the codec
 * `downlink`. What that codec keeps stays at the server. NULL is "none": the mean as f32. All ranks pass the
 * same.
 *
 * Errors: as gw_exchange_new, also for the downlink.
 */
gw_result gw_exchange_new_server(const gw_codec *codec,
                                 const gw_layout *layout,
                                 uint32_t server,
                                 const gw_codec *downlink,
                                 gw_exchange **exchange);

/**
 * Sets the share of the coordinates that is sent from the next step on, from 1e-9 to 1. All ranks set
 * the same for the same steps.
 *
 * Errors: GW_EXCHANGE_BUSY during a step, GW_ERROR_OUT_OF_RANGE, GW_EXCHANGE_CONFLICT for a codec that
 * has no density, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_exchange_set_density(gw_exchange *exchange,
                                  double density);

/**
 * Sets the epoch, counted from 0, for the steps from here on: the density is then that of the warm-up that
 * the spelling asks for. All ranks set the same for the same steps.
 *
 * Errors: GW_EXCHANGE_BUSY during a step, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_exchange_set_epoch(gw_exchange *exchange,
                                uint64_t epoch);

/**
 * Of a server, for the steps from here on: the fewest frames with which a step succeeds, its own included; 0
 * is all, which is the default without packets. Frames that come too late go back to the memories of their
 * ranks.
 *
 * Errors: GW_EXCHANGE_NO_DOWNLINK on a route without a server, GW_ERROR_NULL_POINTER,
 * GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_exchange_set_quorum(gw_exchange *exchange,
                                 size_t quorum);

/**
 * Of a server, for the steps from here on: how long it waits for frames, in nanoseconds, before it goes on
 * with those of a quorum. By default until the deadline of the step.
 *
 * Errors: as gw_exchange_set_quorum.
 */
gw_result gw_exchange_set_patience(gw_exchange *exchange,
                                   uint64_t nanoseconds);

/* ======== Rounds of linear codecs ======== */

/**
 * The sum of floats, in whatever order, the same at all ranks.
 */
#define GW_SUM_F32 0

/**
 * The sum of int32_t.
 */
#define GW_SUM_I32 1

/**
 * The largest of floats.
 */
#define GW_MAX_F32 2

/**
 * The smallest of int32_t.
 */
#define GW_MIN_I32 3

/**
 * The bitwise and of uint32_t.
 */
#define GW_AND_U32 4

/**
 * The sum of uint8_t, modulo 256.
 */
#define GW_SUM_U8 5

/**
 * The bytes of all ranks, in their order: each has its own in its place, and all places are as long.
 */
#define GW_GATHER_U8 6

/**
 * The bytes of rank r: the reduction is GW_BROADCAST_U8 + r.
 */
#define GW_BROADCAST_U8 2147483648

/**
 * Allocates the object for rounds. gw_rounds_free frees it.
 *
 * Errors: as gw_rounds_init, and GW_ERROR_NO_HEAP.
 */
gw_result gw_rounds_new(const gw_codec *codec,
                        const gw_layout *layout,
                        uint32_t workers,
                        gw_rounds **rounds);

/**
 * Frees what gw_rounds_new made. NULL is nothing to free.
 *
 * Errors: GW_ERROR_NOT_ALLOCATED for an object in the caller's memory, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_rounds_free(gw_rounds *rounds);

/**
 * Sets the seed, the same at all ranks, and the rank, which is below their number.
 *
 * Errors: GW_ERROR_OUT_OF_RANGE, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_rounds_set_source(gw_rounds *rounds, uint64_t seed, uint32_t rank);

/**
 * How many units a gradient has: all ranks go through the rounds of each.
 *
 * Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_rounds_units(const gw_rounds *rounds, size_t *units);

/**
 * Begins the rounds of unit number `unit`, counted from 0, of a gradient of `count` values, as many as the
 * layout has. Rounds that were not finished are forgotten, as if they had not begun.
 *
 * The memory, NULL for a codec without GW_CAN_KEEP, must stay until the rounds are over, and nobody may
 * change it meanwhile. It changes in the last gw_rounds_advance, or in gw_rounds_abandon.
 *
 * Errors: GW_ERROR_OUT_OF_RANGE for a unit that is not there; GW_ENCODE_NON_FINITE_INPUT,
 * GW_ENCODE_VALUE_OVERFLOW, GW_ENCODE_MEMORY_INCOMPLETE, GW_ENCODE_MEMORY_REFUSED, GW_ENCODE_NOT_BUILT;
 * GW_ERROR_WRONG_LENGTH, GW_ERROR_WRONG_LAYOUT, GW_ERROR_NULL_POINTER, GW_ERROR_MISALIGNED,
 * GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_rounds_begin(gw_rounds *rounds,
                          size_t unit,
                          uint64_t step,
                          const float *values,
                          size_t count,
                          gw_memory *memory);

/**
 * What is to be reduced in this round: `*payload` points to `*elements` numbers, which are to be replaced by
 * their reduction over all ranks; `*reduction` is one of GW_SUM_F32 and the like, which also says of what
 * type they are. They stay where they are until the object is used the next time.
 *
 * Errors: GW_ERROR_NO_ROUND before gw_rounds_begin and after the last round, GW_ERROR_NULL_POINTER,
 * GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_rounds_payload(gw_rounds *rounds,
                            uint32_t *reduction,
                            void **payload,
                            size_t *elements);

/**
 * Takes the reduced payload. `*more` becomes 1 when there is another round. Else it becomes 0: the mean of
 * the unit over all ranks is then in its place of `mean`, which has `count` values, as many as the layout
 * has, and the memory keeps what is not in it.
 *
 * Errors: nothing has changed then. GW_ERROR_NO_ROUND, GW_ERROR_WRONG_LENGTH, GW_ERROR_OVERLAP when the mean
 * is the residual, GW_ERROR_NULL_POINTER, GW_ERROR_MISALIGNED, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_rounds_advance(gw_rounds *rounds,
                            float *mean,
                            size_t count,
                            uint32_t *more);

/**
 * Gives up: the memory's residual becomes residual + gradient, so that nothing is lost. Also after the last
 * gw_rounds_advance, when the mean must be refused.
 *
 * Errors: GW_ERROR_NO_ROUND when nothing has begun, or it was given up before, GW_ERROR_NULL_POINTER,
 * GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_rounds_abandon(gw_rounds *rounds);

/* ======== Without a heap ======== */

/*
 * The library that `install.sh PREFIX small TARGET` builds allocates nothing and needs no operating
 * system. Its functions are these; linking finds what is not there:
 *
 *   gw_codec_size, gw_draw, gw_encode, gw_encode_void, gw_encoder_error_index,
 *   gw_encoder_error_text, gw_encoder_init, gw_encoder_set_divide_by_senders,
 *   gw_encoder_set_source, gw_encoder_size, gw_format_version_max, gw_format_version_min,
 *   gw_frame_add, gw_frame_bound, gw_frame_each, gw_frame_init, gw_frame_length, gw_frame_size,
 *   gw_frame_step, gw_layout_elements, gw_layout_fingerprint, gw_layout_init,
 *   gw_layout_init_opaque, gw_layout_size, gw_limits_init, gw_limits_set_max_body_bytes,
 *   gw_limits_set_max_elements, gw_limits_set_max_entries, gw_limits_set_max_magnitude,
 *   gw_limits_set_max_scratch_words, gw_limits_set_max_units, gw_limits_size, gw_memory_clear,
 *   gw_memory_decay, gw_memory_give_back, gw_memory_init, gw_memory_keep, gw_memory_load,
 *   gw_memory_norm, gw_memory_remap, gw_memory_rescale, gw_memory_residual, gw_memory_save,
 *   gw_memory_size, gw_none_init, gw_qsgd_init, gw_result_name, gw_result_text, gw_topk_init,
 *   gw_version_number, gw_void_read.
 *
 * Each codec has a constructor here, because one that reads spellings would link all of them. A codec
 * that was made so is like any other, in any library. Frames that need what small machines leave out
 * (docs/microcontrollers.md) are refused with GW_DECODE_NOT_BUILT. GW_FRAME_BOUND says how much room a
 * frame needs. A fault of the library, elsewhere GW_ERROR_PANIC, is an undefined instruction here.
 */

/**
 * A share of the coordinates as gw_topk_init takes it, computed by the compiler.
 */
#define GW_DENSITY(share) ((uint32_t)((share) * 1e9 + 0.5))

/**
 * As gw_codec_init with "topk:density=…". The density is GW_DENSITY(0.01), say: in billionths, because many
 * small machines have no instructions for double.
 *
 * Errors: GW_ERROR_OUT_OF_RANGE for 0 and above a billion, and those of every object.
 */
gw_result gw_topk_init(void *memory,
                       size_t size,
                       uint32_t density,
                       gw_codec **codec);

/**
 * As gw_codec_init with "qsgd:bits=…,entropy=fixed".
 *
 * Errors: GW_ERROR_OUT_OF_RANGE outside of 2 to 8, and those of every object.
 */
gw_result gw_qsgd_init(void *memory, size_t size, uint32_t bits, gw_codec **codec);

/**
 * As gw_codec_init with "none": every value as it is.
 *
 * Errors: those of every object.
 */
gw_result gw_none_init(void *memory, size_t size, gw_codec **codec);

/* ======== Limits ======== */

/**
 * Allocates limits, as gw_limits_init makes them. gw_limits_free frees them.
 *
 * Errors: as gw_limits_init, and GW_ERROR_NO_HEAP.
 */
gw_result gw_limits_new(const gw_layout *layout, gw_limits **limits);

/**
 * Frees what gw_limits_new made. NULL is nothing to free.
 *
 * Errors: GW_ERROR_NOT_ALLOCATED for limits in the caller's memory, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_limits_free(gw_limits *limits);

/**
 * Elements that all units of a frame may cover together.
 *
 * Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_limits_set_max_elements(gw_limits *limits, size_t value);

/**
 * Bytes after the header.
 *
 * Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_limits_set_max_body_bytes(gw_limits *limits, size_t value);

/**
 * Entries of sparse units, over all units of a frame.
 *
 * Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_limits_set_max_entries(gw_limits *limits, size_t value);

/**
 * Units of a frame.
 *
 * Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_limits_set_max_units(gw_limits *limits, size_t value);

/**
 * Words of 32 bits that reading a frame may take.
 *
 * Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_limits_set_max_scratch_words(gw_limits *limits, size_t value);

/**
 * The largest magnitude of a value: what one peer can do to a mean. Not negative, and not NaN.
 *
 * Errors: GW_ERROR_OUT_OF_RANGE, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_limits_set_max_magnitude(gw_limits *limits, float value);

/* ======== Looking into a frame ======== */

/**
 * Allocates and reads the outline of a frame. gw_outline_free frees it.
 *
 * Errors: as gw_outline_init, and GW_ERROR_NO_HEAP.
 */
gw_result gw_outline_new(const uint8_t *bytes,
                         size_t byte_count,
                         const gw_limits *limits,
                         gw_outline **outline);

/**
 * Frees what gw_outline_new made. NULL is nothing to free.
 *
 * Errors: GW_ERROR_NOT_ALLOCATED for an outline in the caller's memory, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_outline_free(gw_outline *outline);

/**
 * The step that the frame belongs to.
 *
 * Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_outline_step(const gw_outline *outline, uint64_t *step);

/**
 * The name of the codec that made the frame, as gw_codec_explain writes its text.
 *
 * Errors: GW_ENCODE_BUFFER_TOO_SMALL, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_outline_codec(const gw_outline *outline, char *out, size_t room, size_t *needed);

/**
 * The fingerprint of the sender's layout.
 *
 * Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_outline_fingerprint(const gw_outline *outline, uint64_t *fingerprint);

/**
 * The end of the last unit: the sender's layout has at least that many elements. The number comes from
 * the sender; compare it with what you are ready to allocate.
 *
 * Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_outline_extent(const gw_outline *outline,
                            size_t *elements);

/**
 * How many units the frame has.
 *
 * Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_outline_units(const gw_outline *outline, size_t *units);

/**
 * Unit number `i` of the frame, counted from 0: its place in the gradient, how many values the frame
 * holds of it, and the bytes of its body. Each of the last four may be NULL.
 *
 * Errors: GW_ERROR_OUT_OF_RANGE for a unit that is not there, GW_ERROR_NULL_POINTER,
 * GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_outline_unit(const gw_outline *outline,
                          size_t i,
                          size_t *start,
                          size_t *elements,
                          size_t *held,
                          size_t *body_bytes);

/**
 * How unit number `i` of the frame is coded, as gw_codec_explain writes its text: "sparse: positions
 * rice 41, values q8 120", with the bytes of each section.
 *
 * Errors: GW_ENCODE_BUFFER_TOO_SMALL, GW_ERROR_OUT_OF_RANGE, GW_ERROR_NULL_POINTER,
 * GW_ERROR_NOT_AN_OBJECT.
 */
gw_result gw_outline_unit_text(const gw_outline *outline,
                               size_t i,
                               char *out,
                               size_t room,
                               size_t *needed);

/* ======== Random draws ======== */

/**
 * A random number of 64 bits for the caller's own use: initial weights, shuffles, masks. It depends on
 * the arguments alone, is the same on every machine, and is not related to any draw of a codec. `unit`
 * separates several uses in one step.
 *
 * Errors: GW_ERROR_OUT_OF_RANGE for a rank that is neither below GW_RANKS nor GW_ALL_RANKS,
 * GW_ERROR_NULL_POINTER. Threads: any, at any time.
 */
gw_result gw_draw(uint64_t seed,
                  uint64_t step,
                  uint32_t rank,
                  uint32_t unit,
                  uint64_t position,
                  uint64_t *draw);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* GRADWIRE_H */
