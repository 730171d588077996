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
