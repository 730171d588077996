/*
 * Calls that no program should make: null pointers, short and misaligned memory, objects of another kind, lengths that
 * do not match, calls in a wrong order, and every frame of tests/bad. Each is an error, never a crash: under the
 * address sanitizer. hostile FOLDER: where tests/bad is.
 */
#include <ctype.h>
#include <float.h>
#include <gradwire.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures = 0;

static void expect(gw_result result, gw_result expected, const char *what, int line) {
  if (result != expected) {
    printf("line %d: %s is %s instead of %s\n", line, what, gw_result_name(result), gw_result_name(expected));
    failures++;
  }
}

#define EXPECT(call, expected) expect(call, expected, #call, __LINE__)
#define NULLS(call) EXPECT(call, GW_ERROR_NULL_POINTER)

/* Memory of exactly so many bytes, so that a byte more is found. */
static void *exact(size_t bytes) {
  void *memory = malloc(bytes);
  if (!memory) exit(1);
  memset(memory, 0xa5, bytes);
  return memory;
}

enum { N = 40 };
static gw_codec *codec;
static gw_layout *layout, *other_layout;
static gw_encoder *encoder;
static gw_memory *memory, *other_memory;
static gw_frame *frame;
static gw_outline *outline;
static gw_limits *limits;
static uint8_t bytes[GW_FRAME_BOUND(N)];
static size_t length;
static float values[N], sum[N];

static void make(void) {
  size_t size;
  EXPECT(gw_codec_new("topk:density=0.1", &codec), GW_OK);
  EXPECT(gw_layout_init(exact(gw_layout_size()), gw_layout_size(), N, &layout), GW_OK);
  EXPECT(gw_layout_init(exact(gw_layout_size()), gw_layout_size(), N + 1, &other_layout), GW_OK);
  EXPECT(gw_encoder_size(codec, layout, &size), GW_OK);
  EXPECT(gw_encoder_init(exact(size), size, codec, layout, &encoder), GW_OK);
  EXPECT(gw_memory_size(codec, layout, &size), GW_OK);
  EXPECT(gw_memory_init(exact(size), size, codec, layout, &memory), GW_OK);
  EXPECT(gw_memory_new(codec, other_layout, &other_memory), GW_OK);
  for (int i = 0; i < N; i++) values[i] = (float)(i - 20);
  EXPECT(gw_encode(encoder, 3, values, N, memory, bytes, sizeof bytes, &length), GW_OK);
  EXPECT(gw_frame_size(bytes, length, layout, NULL, &size), GW_OK);
  EXPECT(gw_frame_init(exact(size), size, bytes, length, layout, NULL, &frame), GW_OK);
  size = gw_outline_size();
  EXPECT(gw_outline_init(exact(size), size, bytes, length, NULL, &outline), GW_OK);
  size = gw_limits_size();
  EXPECT(gw_limits_init(exact(size), size, layout, &limits), GW_OK);
}

static void ignore_value(void *context, size_t index, float value) { (void)context, (void)index, (void)value; }
static void ignore_packet(void *context, const uint8_t *packet, size_t n) { (void)context, (void)packet, (void)n; }

/* Every pointer of every function, null in turn, where NULL has no meaning of its own. */
static void null_pointers(void) {
  static uint64_t space[512];
  gw_codec *a_codec;
  gw_layout *a_layout;
  gw_encoder *an_encoder;
  gw_memory *a_memory;
  gw_frame *a_frame;
  gw_outline *an_outline;
  gw_limits *some_limits;
  size_t size, rank = 1, dim = 4;
  uint64_t number;
  uint32_t can;
  double real;
  const float *residual;
  char text[64];
  NULLS(gw_codec_init(NULL, sizeof space, "topk", &a_codec));
  NULLS(gw_codec_init(space, sizeof space, NULL, &a_codec));
  NULLS(gw_codec_init(space, sizeof space, "topk", NULL));
  NULLS(gw_codec_new(NULL, &a_codec));
  NULLS(gw_codec_new("topk", NULL));
  NULLS(gw_codec_explain(NULL, text, sizeof text, &size));
  NULLS(gw_codec_explain("top", NULL, sizeof text, &size));
  NULLS(gw_codec_spelling(NULL, text, sizeof text, &size));
  NULLS(gw_codec_spelling(codec, NULL, sizeof text, &size));
  NULLS(gw_codec_capabilities(NULL, &can));
  NULLS(gw_codec_capabilities(codec, NULL));
  NULLS(gw_codec_density(NULL, &real));
  NULLS(gw_codec_density(codec, NULL));
  NULLS(gw_codec_set_density(NULL, 0.5));
  NULLS(gw_layout_init(NULL, sizeof space, 4, &a_layout));
  NULLS(gw_layout_init(space, sizeof space, 4, NULL));
  NULLS(gw_layout_init_opaque(NULL, sizeof space, 4, 1, &a_layout));
  NULLS(gw_layout_init_opaque(space, sizeof space, 4, 1, NULL));
  NULLS(gw_layout_new_flat(4, NULL));
  NULLS(gw_layout_new_opaque(4, 1, NULL));
  NULLS(gw_layout_new(1, NULL, NULL, &dim, 1, &a_layout));
  NULLS(gw_layout_new(1, NULL, &rank, NULL, 1, &a_layout));
  NULLS(gw_layout_new(1, NULL, &rank, &dim, 1, NULL));
  NULLS(gw_layout_elements(NULL, &size));
  NULLS(gw_layout_elements(layout, NULL));
  NULLS(gw_layout_fingerprint(NULL, &number));
  NULLS(gw_layout_fingerprint(layout, NULL));
  NULLS(gw_limits_init(NULL, sizeof space, layout, &some_limits));
  NULLS(gw_limits_init(space, sizeof space, NULL, &some_limits));
  NULLS(gw_limits_init(space, sizeof space, layout, NULL));
  NULLS(gw_limits_new(NULL, &some_limits));
  NULLS(gw_limits_new(layout, NULL));
  NULLS(gw_limits_set_max_elements(NULL, 1));
  NULLS(gw_limits_set_max_body_bytes(NULL, 1));
  NULLS(gw_limits_set_max_entries(NULL, 1));
  NULLS(gw_limits_set_max_units(NULL, 1));
  NULLS(gw_limits_set_max_scratch_words(NULL, 1));
  NULLS(gw_limits_set_max_magnitude(NULL, 1));
  NULLS(gw_encoder_size(NULL, layout, &size));
  NULLS(gw_encoder_size(codec, NULL, &size));
  NULLS(gw_encoder_size(codec, layout, NULL));
  NULLS(gw_encoder_init(NULL, sizeof space, codec, layout, &an_encoder));
  NULLS(gw_encoder_init(space, sizeof space, NULL, layout, &an_encoder));
  NULLS(gw_encoder_init(space, sizeof space, codec, NULL, &an_encoder));
  NULLS(gw_encoder_init(space, sizeof space, codec, layout, NULL));
  NULLS(gw_encoder_new(NULL, layout, &an_encoder));
  NULLS(gw_encoder_new(codec, NULL, &an_encoder));
  NULLS(gw_encoder_new(codec, layout, NULL));
  NULLS(gw_encoder_set_source(NULL, 1, 1));
  NULLS(gw_encoder_set_density(NULL, 0.1));
  NULLS(gw_encoder_set_epoch(NULL, 1));
  NULLS(gw_encoder_set_divide_by_senders(NULL, 1));
  NULLS(gw_encoder_frame_bound(NULL, &size));
  NULLS(gw_encoder_frame_bound(encoder, NULL));
  NULLS(gw_encode(NULL, 0, values, N, NULL, bytes, sizeof bytes, &size));
  NULLS(gw_encode(encoder, 0, NULL, N, NULL, bytes, sizeof bytes, &size));
  NULLS(gw_encode(encoder, 0, values, N, NULL, NULL, sizeof bytes, &size));
  NULLS(gw_encode(encoder, 0, values, N, NULL, (uint8_t *)space, sizeof space, NULL));
  NULLS(gw_encode_f16(encoder, 0, NULL, N, NULL, bytes, sizeof bytes, &size));
  NULLS(gw_encode_bf16(encoder, 0, NULL, N, NULL, bytes, sizeof bytes, &size));
  NULLS(gw_encode_packets(encoder, 0, values, N, NULL, bytes, sizeof bytes, NULL, NULL, &size));
  NULLS(gw_encode_packets(NULL, 0, values, N, NULL, bytes, sizeof bytes, ignore_packet, NULL, &size));
  NULLS(gw_encode_packets(encoder, 0, values, N, NULL, bytes, sizeof bytes, ignore_packet, NULL, NULL));
  NULLS(gw_encoder_error_index(NULL, &size));
  NULLS(gw_encoder_error_text(NULL, text, sizeof text, NULL));
  NULLS(gw_encode_void(NULL, bytes, sizeof bytes, &size));
  NULLS(gw_memory_size(NULL, layout, &size));
  NULLS(gw_memory_size(codec, NULL, &size));
  NULLS(gw_memory_size(codec, layout, NULL));
  NULLS(gw_memory_init(NULL, sizeof space, codec, layout, &a_memory));
  NULLS(gw_memory_init(space, sizeof space, NULL, layout, &a_memory));
  NULLS(gw_memory_init(space, sizeof space, codec, NULL, &a_memory));
  NULLS(gw_memory_init(space, sizeof space, codec, layout, NULL));
  NULLS(gw_memory_new(NULL, layout, &a_memory));
  NULLS(gw_memory_new(codec, NULL, &a_memory));
  NULLS(gw_memory_new(codec, layout, NULL));
  NULLS(gw_memory_residual(NULL, &residual, &size));
  NULLS(gw_memory_residual(memory, NULL, &size));
  NULLS(gw_memory_norm(NULL, &real));
  NULLS(gw_memory_norm(memory, NULL));
  NULLS(gw_memory_give_back(NULL, frame));
  NULLS(gw_memory_give_back(memory, NULL));
  NULLS(gw_memory_keep(NULL, values, N));
  NULLS(gw_memory_keep(memory, NULL, N));
  NULLS(gw_memory_rescale(NULL, 1));
  NULLS(gw_memory_decay(NULL, 1));
  NULLS(gw_memory_clear(NULL));
  NULLS(gw_memory_save(NULL, bytes, sizeof bytes, &size));
  NULLS(gw_memory_save(memory, NULL, sizeof bytes, &size));
  NULLS(gw_memory_load(NULL, bytes, sizeof bytes));
  NULLS(gw_memory_load(memory, NULL, sizeof bytes));
  NULLS(gw_memory_remap(NULL, memory, NULL, NULL, NULL));
  NULLS(gw_memory_remap(memory, NULL, NULL, NULL, NULL));
  NULLS(gw_frame_length(NULL, length, &number));
  NULLS(gw_frame_length(bytes, length, NULL));
  NULLS(gw_frame_size(NULL, length, layout, NULL, &size));
  NULLS(gw_frame_size(bytes, length, NULL, NULL, &size));
  NULLS(gw_frame_size(bytes, length, layout, NULL, NULL));
  NULLS(gw_frame_init(NULL, sizeof space, bytes, length, layout, NULL, &a_frame));
  NULLS(gw_frame_init(space, sizeof space, NULL, length, layout, NULL, &a_frame));
  NULLS(gw_frame_init(space, sizeof space, bytes, length, NULL, NULL, &a_frame));
  NULLS(gw_frame_init(space, sizeof space, bytes, length, layout, NULL, NULL));
  NULLS(gw_frame_new(NULL, length, layout, NULL, &a_frame));
  NULLS(gw_frame_new(bytes, length, NULL, NULL, &a_frame));
  NULLS(gw_frame_new(bytes, length, layout, NULL, NULL));
  NULLS(gw_frame_step(NULL, &number));
  NULLS(gw_frame_step(frame, NULL));
  NULLS(gw_frame_add(NULL, 1, sum, N));
  NULLS(gw_frame_add(frame, 1, NULL, N));
  NULLS(gw_frame_each(NULL, ignore_value, NULL));
  NULLS(gw_frame_each(frame, NULL, NULL));
  NULLS(gw_void_read(NULL, length, layout, NULL, NULL));
  NULLS(gw_void_read(bytes, length, NULL, NULL, NULL));
  NULLS(gw_outline_init(NULL, sizeof space, bytes, length, NULL, &an_outline));
  NULLS(gw_outline_init(space, sizeof space, NULL, length, NULL, &an_outline));
  NULLS(gw_outline_init(space, sizeof space, bytes, length, NULL, NULL));
  NULLS(gw_outline_new(NULL, length, NULL, &an_outline));
  NULLS(gw_outline_new(bytes, length, NULL, NULL));
  NULLS(gw_outline_step(NULL, &number));
  NULLS(gw_outline_step(outline, NULL));
  NULLS(gw_outline_codec(NULL, text, sizeof text, NULL));
  NULLS(gw_outline_codec(outline, NULL, sizeof text, NULL));
  NULLS(gw_outline_fingerprint(NULL, &number));
  NULLS(gw_outline_fingerprint(outline, NULL));
  NULLS(gw_outline_extent(NULL, &size));
  NULLS(gw_outline_extent(outline, NULL));
  NULLS(gw_outline_units(NULL, &size));
  NULLS(gw_outline_units(outline, NULL));
  NULLS(gw_outline_unit(NULL, 0, &size, &size, &size, &size));
  NULLS(gw_outline_unit_text(NULL, 0, text, sizeof text, NULL));
  NULLS(gw_outline_unit_text(outline, 0, NULL, sizeof text, NULL));
  NULLS(gw_draw(1, 1, 1, 1, 1, NULL));
  NULLS(gw_add(NULL, length, layout, 1, sum, N));
  NULLS(gw_add(bytes, length, NULL, 1, sum, N));
  NULLS(gw_add(bytes, length, layout, 1, NULL, N));
}

/* Objects in memory that is too short by one byte, or that begins at an odd address. */
static void bad_memory(void) {
  gw_codec *a_codec;
  gw_encoder *an_encoder;
  gw_memory *a_memory;
  gw_frame *a_frame;
  gw_outline *an_outline;
  gw_layout *a_layout;
  size_t size;
  for (size = 0; size < gw_codec_size(); size++) {
    void *at = exact(size + 1);
    EXPECT(gw_codec_init(at, size, "topk", &a_codec), GW_ERROR_OBJECT_TOO_SMALL);
    free(at);
  }
  for (size = 0; size < gw_layout_size(); size++) {
    void *at = exact(size + 1);
    EXPECT(gw_layout_init(at, size, 4, &a_layout), GW_ERROR_OBJECT_TOO_SMALL);
    free(at);
  }
  size_t whole;
  EXPECT(gw_encoder_size(codec, layout, &whole), GW_OK);
  for (size = 0; size + 8 <= whole; size++) {
    void *at = exact(size + 1);
    EXPECT(gw_encoder_init(at, size, codec, layout, &an_encoder), GW_ERROR_OBJECT_TOO_SMALL);
    free(at);
  }
  EXPECT(gw_memory_size(codec, layout, &whole), GW_OK);
  for (size = 0; size + 8 <= whole; size++) {
    void *at = exact(size + 1);
    EXPECT(gw_memory_init(at, size, codec, layout, &a_memory), GW_ERROR_OBJECT_TOO_SMALL);
    free(at);
  }
  EXPECT(gw_frame_size(bytes, length, layout, NULL, &whole), GW_OK);
  for (size = 0; size + 8 <= whole; size++) {
    void *at = exact(size + 1);
    EXPECT(gw_frame_init(at, size, bytes, length, layout, NULL, &a_frame), GW_ERROR_OBJECT_TOO_SMALL);
    free(at);
  }
  for (size = 0; size < gw_outline_size(); size++) {
    void *at = exact(size + 1);
    EXPECT(gw_outline_init(at, size, bytes, length, NULL, &an_outline), GW_ERROR_OBJECT_TOO_SMALL);
    free(at);
  }
  char *odd = (char *)exact(4096) + 1;
  EXPECT(gw_codec_init(odd, 2048, "topk", &a_codec), GW_ERROR_MISALIGNED);
  EXPECT(gw_layout_init(odd, 2048, 4, &a_layout), GW_ERROR_MISALIGNED);
  EXPECT(gw_encoder_init(odd, 2048, codec, layout, &an_encoder), GW_ERROR_MISALIGNED);
  EXPECT(gw_memory_init(odd, 2048, codec, layout, &a_memory), GW_ERROR_MISALIGNED);
  EXPECT(gw_codec_spelling((gw_codec *)odd, odd, 8, NULL), GW_ERROR_MISALIGNED);
  EXPECT(gw_encode(encoder, 0, (float *)(odd + 1), N, NULL, bytes, sizeof bytes, &size), GW_ERROR_MISALIGNED);
  EXPECT(gw_encode_f16(encoder, 0, (uint16_t *)odd, N, NULL, bytes, sizeof bytes, &size), GW_ERROR_MISALIGNED);
  EXPECT(gw_frame_add(frame, 1, (float *)(odd + 1), N), GW_ERROR_MISALIGNED);
  free(odd - 1);
}

/* Objects of another kind, that were not made, or that were freed. */
static void wrong_objects(void) {
  size_t size;
  uint32_t can;
  uint64_t *space = exact(4096);
  gw_codec *made = (gw_codec *)space;
  EXPECT(gw_codec_capabilities(made, &can), GW_ERROR_NOT_AN_OBJECT);
  EXPECT(gw_codec_capabilities((gw_codec *)layout, &can), GW_ERROR_NOT_AN_OBJECT);
  EXPECT(gw_encoder_frame_bound((gw_encoder *)memory, &size), GW_ERROR_NOT_AN_OBJECT);
  EXPECT(gw_encode(encoder, 0, values, N, (gw_memory *)codec, bytes, sizeof bytes, &size), GW_ERROR_NOT_AN_OBJECT);
  EXPECT(gw_frame_add((gw_frame *)outline, 1, sum, N), GW_ERROR_NOT_AN_OBJECT);
  EXPECT(gw_frame_size(bytes, length, layout, (gw_limits *)layout, &size), GW_ERROR_NOT_AN_OBJECT);
  EXPECT(gw_codec_init(space, 4096, "topk", &made), GW_OK);
  EXPECT(gw_codec_capabilities(made, &can), GW_OK);
  EXPECT(gw_codec_free(made), GW_ERROR_NOT_ALLOCATED);
  /* An init that fails leaves no object behind. */
  EXPECT(gw_codec_init(space, 4096, "tipk", &made), GW_ERROR_SPELLING);
  EXPECT(gw_codec_capabilities(made, &can), GW_ERROR_NOT_AN_OBJECT);
  EXPECT(gw_layout_free((gw_layout *)codec), GW_ERROR_NOT_AN_OBJECT);
  EXPECT(gw_memory_free(memory), GW_ERROR_NOT_ALLOCATED);
  EXPECT(gw_encoder_free(encoder), GW_ERROR_NOT_ALLOCATED);
  EXPECT(gw_frame_free(frame), GW_ERROR_NOT_ALLOCATED);
  EXPECT(gw_layout_free(layout), GW_ERROR_NOT_ALLOCATED);
  EXPECT(gw_limits_free(limits), GW_ERROR_NOT_ALLOCATED);
  EXPECT(gw_outline_free(outline), GW_ERROR_NOT_ALLOCATED);
  EXPECT(gw_limits_free((gw_limits *)codec), GW_ERROR_NOT_AN_OBJECT);
  EXPECT(gw_limits_free(NULL), GW_OK);
  EXPECT(gw_outline_free(NULL), GW_OK);
  EXPECT(gw_codec_free(NULL), GW_OK);
  EXPECT(gw_layout_free(NULL), GW_OK);
  EXPECT(gw_encoder_free(NULL), GW_OK);
  EXPECT(gw_memory_free(NULL), GW_OK);
  EXPECT(gw_frame_free(NULL), GW_OK);
  free(space);
}

/* Lengths and numbers that do not fit, and calls that came too early. */
static void wrong_arguments(void) {
  gw_exchange *an_exchange;
  size_t size, needed, rank[2] = {1, 2}, dims[3] = {4, SIZE_MAX, 3};
  uint64_t number;
  gw_layout *a_layout;
  gw_codec *a_codec;
  gw_encoder *an_encoder;
  gw_memory *a_memory;
  float nan[N] = {0};
  char text[8];
  EXPECT(gw_encode(encoder, 0, values, N - 1, memory, bytes, sizeof bytes, &size), GW_ERROR_WRONG_LENGTH);
  EXPECT(gw_encode(encoder, 0, values, SIZE_MAX, memory, bytes, sizeof bytes, &size), GW_ERROR_WRONG_LENGTH);
  EXPECT(gw_encode(encoder, 0, values, N, NULL, bytes, sizeof bytes, &size), GW_ENCODE_MEMORY_INCOMPLETE);
  EXPECT(gw_encode(encoder, 0, values, N, other_memory, bytes, sizeof bytes, &size), GW_ERROR_WRONG_LAYOUT);
  EXPECT(gw_encode(encoder, 0, values, N, memory, (uint8_t *)values, sizeof values, &size), GW_ERROR_OVERLAP);
  EXPECT(gw_encoder_frame_bound(encoder, &needed), GW_OK);
  for (size_t room = 0; room < needed; room++) {
    uint8_t *out = exact(room + 1);
    EXPECT(gw_encode(encoder, 0, values, N, memory, out, room, &size), GW_ENCODE_BUFFER_TOO_SMALL);
    if (size != needed) failures++, printf("%zu bytes are needed, not %zu\n", needed, size);
    free(out);
  }
  EXPECT(gw_encoder_error_index(encoder, &size), GW_ERROR_NO_SUCH_ERROR);
  EXPECT(gw_encode_void(encoder, bytes, sizeof bytes, &size), GW_ERROR_NO_SUCH_ERROR);
  nan[7] = NAN;
  uint8_t out[GW_FRAME_BOUND(N)], out_void[GW_VOID_BYTES];
  EXPECT(gw_encode(encoder, 9, nan, N, memory, out, sizeof out, &size), GW_ENCODE_NON_FINITE_INPUT);
  EXPECT(gw_encoder_error_index(encoder, &size), GW_OK);
  if (size != 7) failures++, printf("the value at 7 was named %zu\n", size);
  EXPECT(gw_encode_void(encoder, out_void, sizeof out_void - 1, &size), GW_ENCODE_BUFFER_TOO_SMALL);
  EXPECT(gw_encode_void(encoder, out_void, sizeof out_void, &size), GW_OK);
  EXPECT(gw_add(out_void, size, layout, 1, sum, N), GW_DECODE_VOID);
  EXPECT(gw_void_read(out_void, size, layout, &number, &needed), GW_OK);
  if (number != 9 || needed != 7) failures++, printf("the void frame says %llu %zu\n", (unsigned long long)number, needed);
  EXPECT(gw_void_read(bytes, length, layout, NULL, NULL), GW_ERROR_NOT_VOID);
  EXPECT(gw_memory_keep(memory, nan, N), GW_ENCODE_NON_FINITE_INPUT);
  EXPECT(gw_memory_keep(memory, values, N + 1), GW_ERROR_WRONG_LENGTH);
  EXPECT(gw_memory_give_back(other_memory, frame), GW_ERROR_WRONG_LAYOUT);
  EXPECT(gw_memory_remap(memory, memory, NULL, NULL, NULL), GW_ERROR_OVERLAP);
  EXPECT(gw_memory_decay(memory, 1.5f), GW_ERROR_OUT_OF_RANGE);
  EXPECT(gw_memory_decay(memory, (float)NAN), GW_ERROR_OUT_OF_RANGE);
  EXPECT(gw_memory_rescale(memory, (float)INFINITY), GW_ERROR_OUT_OF_RANGE);
  EXPECT(gw_memory_rescale(memory, FLT_MAX), GW_ERROR_OUT_OF_RANGE);
  EXPECT(gw_memory_load(memory, bytes, length), GW_DECODE_BAD_MAGIC);
  EXPECT(gw_encode_packets(encoder, 0, values, N, memory, out, sizeof out, ignore_packet, NULL, &size),
         GW_ENCODE_NO_PACKETS);
  EXPECT(gw_encoder_set_source(encoder, 1, GW_RANKS), GW_ERROR_OUT_OF_RANGE);
  EXPECT(gw_encoder_set_density(encoder, 0), GW_ERROR_OUT_OF_RANGE);
  EXPECT(gw_encoder_set_density(encoder, NAN), GW_ERROR_OUT_OF_RANGE);
  EXPECT(gw_encoder_set_density(encoder, 1), GW_ENCODE_SCRATCH_TOO_SMALL);
  EXPECT(gw_limits_set_max_magnitude(limits, (float)NAN), GW_ERROR_OUT_OF_RANGE);
  EXPECT(gw_limits_set_max_magnitude(limits, 1), GW_OK);
  EXPECT(gw_frame_size(bytes, length, layout, limits, &size), GW_OK);
  gw_frame *a_frame;
  EXPECT(gw_frame_new(bytes, length, layout, limits, &a_frame), GW_DECODE_LIMIT_EXCEEDED);
  EXPECT(gw_add(bytes, length, other_layout, 1, sum, N), GW_DECODE_LAYOUT_MISMATCH);
  EXPECT(gw_add(bytes, length, layout, 1, sum, N - 1), GW_ERROR_WRONG_LENGTH);
  EXPECT(gw_outline_unit(outline, 1, NULL, NULL, NULL, NULL), GW_ERROR_OUT_OF_RANGE);
  EXPECT(gw_layout_new(2, NULL, rank, dims, 3, &a_layout), GW_ERROR_LAYOUT);
  EXPECT(gw_layout_new(2, NULL, rank, dims, 2, &a_layout), GW_ERROR_WRONG_LENGTH);
  EXPECT(gw_layout_new(1, NULL, rank, dims, 2, &a_layout), GW_ERROR_WRONG_LENGTH);
  EXPECT(gw_layout_new(SIZE_MAX, NULL, rank, dims, 2, &a_layout), GW_ERROR_WRONG_LENGTH);
  EXPECT(gw_codec_new("\xff", &a_codec), GW_ERROR_NOT_UTF8);
  EXPECT(gw_codec_explain("topk:density=7", text, sizeof text, &size), GW_ENCODE_BUFFER_TOO_SMALL);
  if (strcmp(text, "density") != 0 || size < 20) failures++, printf("'%s' of %zu\n", text, size);
  /* Codecs without frames, memory or density. */
  EXPECT(gw_codec_new("powersgd:rank=1", &a_codec), GW_OK);
  EXPECT(gw_encoder_new(a_codec, layout, &an_encoder), GW_ENCODE_NO_FRAMES);
  EXPECT(gw_codec_set_density(a_codec, 0.5), GW_ERROR_NOT_SUPPORTED);
  EXPECT(gw_codec_free(a_codec), GW_OK);
  EXPECT(gw_codec_new("dgc:clip=1", &a_codec), GW_OK);
  EXPECT(gw_encoder_new(a_codec, layout, &an_encoder), GW_ERROR_NOT_SUPPORTED);
  EXPECT(gw_codec_free(a_codec), GW_OK);
  EXPECT(gw_codec_new("qsgd", &a_codec), GW_OK);
  EXPECT(gw_memory_new(a_codec, layout, &a_memory), GW_ERROR_NOTHING_KEPT);
  EXPECT(gw_encoder_new(a_codec, layout, &an_encoder), GW_OK);
  EXPECT(gw_encode(an_encoder, 0, values, N, memory, out, sizeof out, &size), GW_ENCODE_MEMORY_REFUSED);
  EXPECT(gw_encoder_free(an_encoder), GW_OK);
  EXPECT(gw_codec_free(a_codec), GW_OK);
  /* More elements than can be addressed. */
  EXPECT(gw_layout_init(exact(gw_layout_size()), gw_layout_size(), SIZE_MAX, &a_layout), GW_OK);
  EXPECT(gw_memory_size(codec, a_layout, &size), GW_ERROR_WRONG_LENGTH);
  EXPECT(gw_encoder_size(codec, a_layout, &size), GW_ERROR_WRONG_LENGTH);
  EXPECT(gw_exchange_new(codec, a_layout, GW_ROUTE_ALL_GATHER, &an_exchange), GW_ERROR_WRONG_LENGTH);
  EXPECT(gw_exchange_new_server(codec, a_layout, 0, codec, &an_exchange), GW_ERROR_WRONG_LENGTH);
  /* More than this machine has. */
  EXPECT(gw_layout_init(exact(gw_layout_size()), gw_layout_size(), SIZE_MAX >> 14, &a_layout), GW_OK);
  EXPECT(gw_memory_new(codec, a_layout, &a_memory), GW_ERROR_NO_HEAP);
  EXPECT(gw_exchange_new(codec, a_layout, GW_ROUTE_ALL_GATHER, &an_exchange), GW_ERROR_NO_HEAP);
  EXPECT(gw_exchange_new_server(codec, a_layout, 0, codec, &an_exchange), GW_ERROR_NO_HEAP);
}

/* The frame of `make`, cut at every length and with every bit turned: an error each, and the sum stays as it was. */
static void damaged_frames(void) {
  for (size_t i = 0; i < N; i++) sum[i] = 1.0f;
  for (size_t cut = 0; cut < length; cut++) {
    uint8_t *part = exact(cut + 1);
    memcpy(part, bytes, cut);
    gw_result result = gw_add(part, cut, layout, 1, sum, N);
    if (result < GW_DECODE_BAD_MAGIC || result > 199) failures++, printf("cut at %zu: %s\n", cut, gw_result_name(result));
    free(part);
  }
  for (size_t bit = 0; bit < 8 * length; bit++) {
    bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    gw_result result = gw_add(bytes, length, layout, 1, sum, N);
    if (result < GW_DECODE_BAD_MAGIC || result > 199) failures++, printf("bit %zu: %s\n", bit, gw_result_name(result));
    bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
  }
  for (size_t i = 0; i < N; i++) {
    if (sum[i] != 1.0f) failures++, printf("a damaged frame changed the sum\n");
  }
}

/* "BadMagic" of the manifest is GW_DECODE_BAD_MAGIC. */
static int is_named(gw_result result, const char *variant) {
  char name[64] = "GW_DECODE";
  size_t n = strlen(name);
  for (; isalnum((unsigned char)*variant) && n + 3 < sizeof name; variant++) {
    if (isupper((unsigned char)*variant)) name[n++] = '_';
    name[n++] = (char)toupper((unsigned char)*variant);
  }
  name[n] = 0;
  return strcmp(gw_result_name(result), name) == 0;
}

/* Every file of the folder that the manifest names with a plain length, and its error. */
static void bad_frames(const char *folder) {
  char path[4096], line[1024], file[256], error[256];
  unsigned long elements;
  int read = 0, compared = 0;
  snprintf(path, sizeof path, "%s/manifest.txt", folder);
  FILE *manifest = fopen(path, "r");
  if (!manifest) exit(2);
  while (fgets(line, sizeof line, manifest)) {
    if (sscanf(line, "file=%255s error=%255s", file, error) != 2) continue;
    int tail = 0;
    const char *shape = strstr(line, " layout=");
    int flat = shape && sscanf(shape, " layout=%lu%n", &elements, &tail) == 1 && shape[tail] == '\n';
    snprintf(path, sizeof path, "%s/%s.bin", folder, file);
    FILE *input = fopen(path, "rb");
    if (!input) exit(2);
    uint8_t *content = exact(1 << 20);
    size_t n = fread(content, 1, 1 << 20, input);
    fclose(input);
    uint8_t *whole = exact(n + (n == 0));
    memcpy(whole, content, n);
    free(content);
    gw_layout *of_file;
    gw_frame *a_frame = NULL;
    gw_outline *an_outline;
    void *space = exact(gw_layout_size()), *outline_space = exact(gw_outline_size());
    EXPECT(gw_layout_init(space, gw_layout_size(), flat ? elements : 4, &of_file), GW_OK);
    /* The errors of the manifest are those of a reader without limits. */
    gw_limits *none;
    void *limits_space = exact(gw_limits_size());
    EXPECT(gw_limits_init(limits_space, gw_limits_size(), of_file, &none), GW_OK);
    EXPECT(gw_limits_set_max_elements(none, SIZE_MAX), GW_OK);
    EXPECT(gw_limits_set_max_body_bytes(none, SIZE_MAX), GW_OK);
    EXPECT(gw_limits_set_max_entries(none, SIZE_MAX), GW_OK);
    EXPECT(gw_limits_set_max_units(none, SIZE_MAX), GW_OK);
    EXPECT(gw_limits_set_max_scratch_words(none, SIZE_MAX), GW_OK);
    gw_result result = gw_frame_new(whole, n, of_file, none, &a_frame);
    if (flat && !is_named(result, error)) {
      failures++, printf("%s: %s instead of %s\n", file, gw_result_name(result), error);
    }
    gw_frame_free(a_frame);
    gw_outline_init(outline_space, gw_outline_size(), whole, n, NULL, &an_outline);
    gw_void_read(whole, n, of_file, NULL, NULL);
    if (gw_memory_load(memory, whole, n) == GW_OK) failures++, printf("%s is a memory\n", file);
    free(limits_space), free(outline_space), free(space), free(whole);
    read++, compared += flat;
  }
  fclose(manifest);
  printf("%d bad frames, %d of them with their error\n", read, compared);
  if (compared < 100) failures++;
}

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  make();
  null_pointers();
  bad_memory();
  wrong_objects();
  wrong_arguments();
  damaged_frames();
  bad_frames(argv[1]);
  if (strcmp(gw_result_name(4711), "unknown") != 0) failures++;
  printf("%d failures\n", failures);
  return failures != 0;
}
