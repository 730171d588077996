/* What the crate `mpi` does not offer: reductions in place, a sum of bfloat16, the library's settings, and an abort
   that cannot hang. MPI_IN_PLACE is a macro of each library, so it has to be compiled from C. */

#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUM_F32 = 0, SUM_I32 = 1, SUM_BF16 = 2 };

/* Seconds after which a process that MPI_Abort does not end is ended by SIGALRM. */
enum { LAST_RESORT_SECONDS = 5 };

/* Bytes, its final zero included. */
enum { LONGEST_SETTING = 4096 };

static float widen(uint16_t narrow) {
  uint32_t bits = (uint32_t)narrow << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* To nearest, ties to even; a NaN stays one. */
static uint16_t narrow(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x0040u);
  return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static void add_bf16(void *in, void *inout, int *len, MPI_Datatype *type) {
  const uint16_t *from = in;
  uint16_t *into = inout;
  (void)type;
  for (int i = 0; i < *len; i++) into[i] = narrow(widen(from[i]) + widen(into[i]));
}

/* Sums `count` elements of all ranks in place. Integers wrap, which signed ones need not. */
void gradwire_mpi_sum(int kind, void *data, int count) {
  static MPI_Op bf16 = MPI_OP_NULL;
  if (bf16 == MPI_OP_NULL) MPI_Op_create(add_bf16, 1, &bf16);
  switch (kind) {
    case SUM_F32: MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case SUM_I32: MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_UINT32_T, MPI_SUM, MPI_COMM_WORLD); break;
    case SUM_BF16: MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_UINT16_T, bf16, MPI_COMM_WORLD); break;
  }
}

/* Writes an enumerated value as the library names it. */
static void describe(MPI_T_enum names, int value, char *text, int capacity) {
  int items = 0;
  snprintf(text, (size_t)capacity, "%d", value);
  if (names == MPI_T_ENUM_NULL) return;
  if (MPI_T_enum_get_info(names, &items, NULL, &(int){0}) != MPI_SUCCESS) return;
  for (int i = 0; i < items; i++) {
    int found = 0, length = capacity;
    if (MPI_T_enum_get_item(names, i, &found, text, &length) == MPI_SUCCESS && found == value) return;
  }
  snprintf(text, (size_t)capacity, "%d", value);
}

/* Reads a setting of the library as text. Returns 0 where there is no such setting. The tools interface stays open:
   MPICH 4.0 knows no names any more when it is opened a second time. */
int gradwire_mpi_setting(const char *name, char *text, int capacity) {
  static int opened = 0;
  int index = 0, provided = 0, count = 0, known = 0;
  if (!opened && MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS) return 0;
  opened = 1;
  if (MPI_T_cvar_get_index(name, &index) == MPI_SUCCESS) {
    MPI_T_cvar_handle handle;
    MPI_Datatype type;
    MPI_T_enum names;
    int name_len = 0, text_len = 0, verbosity = 0, bind = 0, scope = 0;
    if (MPI_T_cvar_get_info(index, NULL, &name_len, &verbosity, &type, &names, NULL, &text_len, &bind, &scope) ==
            MPI_SUCCESS &&
        MPI_T_cvar_handle_alloc(index, NULL, &handle, &count) == MPI_SUCCESS) {
      /* The library writes what the type says, and `count` of it. */
      union { int number; bool flag; char text[LONGEST_SETTING]; } value = {0};
      if (type == MPI_INT && count == 1) {
        known = MPI_T_cvar_read(handle, &value) == MPI_SUCCESS;
        describe(names, value.number, text, capacity);
      } else if (type == MPI_C_BOOL && count == 1) {
        known = MPI_T_cvar_read(handle, &value) == MPI_SUCCESS;
        snprintf(text, (size_t)capacity, "%d", value.flag);
      } else if (type == MPI_CHAR && count <= LONGEST_SETTING) {
        known = MPI_T_cvar_read(handle, &value) == MPI_SUCCESS;
        snprintf(text, (size_t)capacity, "%s", value.text);
      }
      MPI_T_cvar_handle_free(&handle);
    }
  }
  return known;
}

#ifdef __GLIBC__
static void refuse_success(int status, void *code) {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (status != 0 || finalized) return;
  fputs("exit was called before the transport was closed\n", stderr);
  _exit((int)(intptr_t)code);
}
#endif

/* From now on, who calls exit(0) before MPI is finalized ends with `code`: to the launcher of MPICH a rank that goes away
   like that has, now and then, done well. */
void gradwire_mpi_guard_exit(int code) {
#ifdef __GLIBC__
  on_exit(refuse_success, (void *)(intptr_t)code);
#endif
  (void)code;
}

/* Ends every process of the job with `code`. */
void gradwire_mpi_abort(int code) {
  int initialized = 0, finalized = 0;
  alarm(LAST_RESORT_SECONDS);
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (initialized && !finalized) MPI_Abort(MPI_COMM_WORLD, code);
  _exit(code);
}
