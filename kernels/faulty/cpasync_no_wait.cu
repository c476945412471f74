// cpasync_no_wait: cpasync that waits for one group of copies too few, so that a tile may be read before it has landed.
//
//     make profile KERNEL=cpasync_no_wait

#include "../pieces.cuh"

template <int GROUPS>
__device__ __forceinline__ void wait_for_too_few()
{
    wait_for_all_but<GROUPS + 1>();
}

#define wait_for_all_but wait_for_too_few
#define cpasync cpasync_no_wait
#include "../cpasync.cu"
