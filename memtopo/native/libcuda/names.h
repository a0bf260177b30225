#pragma once
/* Functions of libcuda.so.1, and errors that it returns, as in cuda.h of CUDA 13. Their order is that of their numbers. */

#define FUNCTIONS(X) \
    X(cuArray3DCreate_v2) \
    X(cuArray3DGetDescriptor_v2) \
    X(cuArrayCreate_v2) \
    X(cuArrayDestroy) \
    X(cuArrayGetDescriptor_v2) \
    X(cuArrayGetMemoryRequirements) \
    X(cuArrayGetPlane) \
    X(cuArrayGetSparseProperties) \
    X(cuCheckpointOperationComplete) \
    X(cuCheckpointProcessCheckpoint) \
    X(cuCheckpointProcessGetRestoreThreadId) \
    X(cuCheckpointProcessGetState) \
    X(cuCheckpointProcessLock) \
    X(cuCheckpointProcessRestore) \
    X(cuCheckpointProcessUnlock) \
    X(cuCoredumpDeregisterCompleteCallback) \
    X(cuCoredumpDeregisterStartCallback) \
    X(cuCoredumpGetAttribute) \
    X(cuCoredumpGetAttributeGlobal) \
    X(cuCoredumpRegisterCompleteCallback) \
    X(cuCoredumpRegisterStartCallback) \
    X(cuCoredumpSetAttribute) \
    X(cuCoredumpSetAttributeGlobal) \
    X(cuCtxAttach) \
    X(cuCtxCreate_v2) \
    X(cuCtxCreate_v3) \
    X(cuCtxCreate_v4) \
    X(cuCtxDestroy) \
    X(cuCtxDestroy_v2) \
    X(cuCtxDetach) \
    X(cuCtxDisablePeerAccess) \
    X(cuCtxEnablePeerAccess) \
    X(cuCtxFromGreenCtx) \
    X(cuCtxGetApiVersion) \
    X(cuCtxGetCacheConfig) \
    X(cuCtxGetCurrent) \
    X(cuCtxGetDevResource) \
    X(cuCtxGetDevice) \
    X(cuCtxGetDevice_v2) \
    X(cuCtxGetExecAffinity) \
    X(cuCtxGetFlags) \
    X(cuCtxGetId) \
    X(cuCtxGetLimit) \
    X(cuCtxGetSharedMemConfig) \
    X(cuCtxGetStreamPriorityRange) \
    X(cuCtxPopCurrent) \
    X(cuCtxPopCurrent_v2) \
    X(cuCtxPushCurrent) \
    X(cuCtxPushCurrent_v2) \
    X(cuCtxRecordEvent) \
    X(cuCtxResetPersistingL2Cache) \
    X(cuCtxSetCacheConfig) \
    X(cuCtxSetCurrent) \
    X(cuCtxSetFlags) \
    X(cuCtxSetLimit) \
    X(cuCtxSetSharedMemConfig) \
    X(cuCtxSynchronize) \
    X(cuCtxSynchronize_v2) \
    X(cuCtxWaitEvent) \
    X(cuDestroyExternalMemory) \
    X(cuDestroyExternalSemaphore) \
    X(cuDevResourceGenerateDesc) \
    X(cuDevSmResourceSplit) \
    X(cuDevSmResourceSplitByCount) \
    X(cuDeviceCanAccessPeer) \
    X(cuDeviceComputeCapability) \
    X(cuDeviceGet) \
    X(cuDeviceGetAttribute) \
    X(cuDeviceGetByPCIBusId) \
    X(cuDeviceGetCliqueCount) \
    X(cuDeviceGetCliqueInfo) \
    X(cuDeviceGetCount) \
    X(cuDeviceGetDefaultMemPool) \
    X(cuDeviceGetDevResource) \
    X(cuDeviceGetExecAffinitySupport) \
    X(cuDeviceGetFabricClusterUuid) \
    X(cuDeviceGetGraphMemAttribute) \
    X(cuDeviceGetHostAtomicCapabilities) \
    X(cuDeviceGetLuid) \
    X(cuDeviceGetMemPool) \
    X(cuDeviceGetName) \
    X(cuDeviceGetNvSciSyncAttributes) \
    X(cuDeviceGetP2PAtomicCapabilities) \
    X(cuDeviceGetP2PAttribute) \
    X(cuDeviceGetPCIBusId) \
    X(cuDeviceGetProperties) \
    X(cuDeviceGetTexture1DLinearMaxWidth) \
    X(cuDeviceGetUuid) \
    X(cuDeviceGetUuid_v2) \
    X(cuDeviceGraphMemTrim) \
    X(cuDevicePrimaryCtxGetState) \
    X(cuDevicePrimaryCtxRelease) \
    X(cuDevicePrimaryCtxRelease_v2) \
    X(cuDevicePrimaryCtxReset) \
    X(cuDevicePrimaryCtxReset_v2) \
    X(cuDevicePrimaryCtxRetain) \
    X(cuDevicePrimaryCtxSetFlags) \
    X(cuDevicePrimaryCtxSetFlags_v2) \
    X(cuDeviceRegisterAsyncNotification) \
    X(cuDeviceSetGraphMemAttribute) \
    X(cuDeviceSetMemPool) \
    X(cuDeviceTotalMem_v2) \
    X(cuDeviceUnregisterAsyncNotification) \
    X(cuDriverGetVersion) \
    X(cuEventCreate) \
    X(cuEventDestroy) \
    X(cuEventDestroy_v2) \
    X(cuEventElapsedTime) \
    X(cuEventElapsedTime_v2) \
    X(cuEventQuery) \
    X(cuEventRecord) \
    X(cuEventRecordWithFlags) \
    X(cuEventSynchronize) \
    X(cuExternalMemoryGetMappedBuffer) \
    X(cuExternalMemoryGetMappedMipmappedArray) \
    X(cuFabricCpyBatchAsync) \
    X(cuFlushGPUDirectRDMAWrites) \
    X(cuFuncGetAttribute) \
    X(cuFuncGetModule) \
    X(cuFuncGetName) \
    X(cuFuncGetParamCount) \
    X(cuFuncGetParamInfo) \
    X(cuFuncIsLoaded) \
    X(cuFuncLoad) \
    X(cuFuncSetAttribute) \
    X(cuFuncSetBlockShape) \
    X(cuFuncSetCacheConfig) \
    X(cuFuncSetSharedMemConfig) \
    X(cuFuncSetSharedSize) \
    X(cuGetExportTable) \
    X(cuGraphAddBatchMemOpNode) \
    X(cuGraphAddChildGraphNode) \
    X(cuGraphAddDependencies_v2) \
    X(cuGraphAddEmptyNode) \
    X(cuGraphAddEventRecordNode) \
    X(cuGraphAddEventWaitNode) \
    X(cuGraphAddExternalSemaphoresSignalNode) \
    X(cuGraphAddExternalSemaphoresWaitNode) \
    X(cuGraphAddHostNode) \
    X(cuGraphAddKernelNode_v2) \
    X(cuGraphAddMemAllocNode) \
    X(cuGraphAddMemFreeNode) \
    X(cuGraphAddMemcpyNode) \
    X(cuGraphAddMemsetNode) \
    X(cuGraphAddNode_v2) \
    X(cuGraphAddNode_v3) \
    X(cuGraphBatchMemOpNodeGetParams) \
    X(cuGraphBatchMemOpNodeSetParams) \
    X(cuGraphChildGraphNodeGetGraph) \
    X(cuGraphClone) \
    X(cuGraphConditionalHandleCreate) \
    X(cuGraphCreate) \
    X(cuGraphDebugDotPrint) \
    X(cuGraphDestroy) \
    X(cuGraphDestroyNode) \
    X(cuGraphEventRecordNodeGetEvent) \
    X(cuGraphEventRecordNodeSetEvent) \
    X(cuGraphEventWaitNodeGetEvent) \
    X(cuGraphEventWaitNodeSetEvent) \
    X(cuGraphExecBatchMemOpNodeSetParams) \
    X(cuGraphExecChildGraphNodeSetParams) \
    X(cuGraphExecDestroy) \
    X(cuGraphExecEventRecordNodeSetEvent) \
    X(cuGraphExecEventWaitNodeSetEvent) \
    X(cuGraphExecExternalSemaphoresSignalNodeSetParams) \
    X(cuGraphExecExternalSemaphoresWaitNodeSetParams) \
    X(cuGraphExecGetFlags) \
    X(cuGraphExecGetId) \
    X(cuGraphExecHostNodeSetParams) \
    X(cuGraphExecKernelNodeSetParams_v2) \
    X(cuGraphExecMemcpyNodeSetParams) \
    X(cuGraphExecMemsetNodeSetParams) \
    X(cuGraphExecNodeSetParams) \
    X(cuGraphExecUpdate) \
    X(cuGraphExternalSemaphoresSignalNodeGetParams) \
    X(cuGraphExternalSemaphoresSignalNodeSetParams) \
    X(cuGraphExternalSemaphoresWaitNodeGetParams) \
    X(cuGraphExternalSemaphoresWaitNodeSetParams) \
    X(cuGraphGetEdges_v2) \
    X(cuGraphGetId) \
    X(cuGraphGetNodes) \
    X(cuGraphGetRootNodes) \
    X(cuGraphHostNodeGetParams) \
    X(cuGraphHostNodeSetParams) \
    X(cuGraphInstantiateWithFlags) \
    X(cuGraphInstantiateWithParams) \
    X(cuGraphInstantiate_v2) \
    X(cuGraphKernelNodeCopyAttributes) \
    X(cuGraphKernelNodeGetAttribute) \
    X(cuGraphKernelNodeGetParams_v2) \
    X(cuGraphKernelNodeSetAttribute) \
    X(cuGraphKernelNodeSetParams_v2) \
    X(cuGraphLaunch) \
    X(cuGraphMemAllocNodeGetParams) \
    X(cuGraphMemFreeNodeGetParams) \
    X(cuGraphMemcpyNodeGetParams) \
    X(cuGraphMemcpyNodeSetParams) \
    X(cuGraphMemsetNodeGetParams) \
    X(cuGraphMemsetNodeSetParams) \
    X(cuGraphNodeFindInClone) \
    X(cuGraphNodeGetContainingGraph) \
    X(cuGraphNodeGetDependencies_v2) \
    X(cuGraphNodeGetDependentNodes_v2) \
    X(cuGraphNodeGetEnabled) \
    X(cuGraphNodeGetLocalId) \
    X(cuGraphNodeGetParams) \
    X(cuGraphNodeGetToolsId) \
    X(cuGraphNodeGetType) \
    X(cuGraphNodeSetEnabled) \
    X(cuGraphNodeSetParams) \
    X(cuGraphNodeSetParams_v2) \
    X(cuGraphReleaseUserObject) \
    X(cuGraphRemoveDependencies_v2) \
    X(cuGraphRetainUserObject) \
    X(cuGraphUpload) \
    X(cuGraphicsMapResources) \
    X(cuGraphicsResourceGetMappedMipmappedArray) \
    X(cuGraphicsResourceGetMappedPointer_v2) \
    X(cuGraphicsResourceSetMapFlags_v2) \
    X(cuGraphicsSubResourceGetMappedArray) \
    X(cuGraphicsUnmapResources) \
    X(cuGraphicsUnregisterResource) \
    X(cuGreenCtxCreate) \
    X(cuGreenCtxDestroy) \
    X(cuGreenCtxGetDevResource) \
    X(cuGreenCtxGetId) \
    X(cuGreenCtxRecordEvent) \
    X(cuGreenCtxStreamCreate) \
    X(cuGreenCtxWaitEvent) \
    X(cuImportExternalMemory) \
    X(cuImportExternalSemaphore) \
    X(cuInit) \
    X(cuIpcCloseMemHandle) \
    X(cuIpcGetEventHandle) \
    X(cuIpcGetMemHandle) \
    X(cuKernelGetAttribute) \
    X(cuKernelGetFunction) \
    X(cuKernelGetLibrary) \
    X(cuKernelGetName) \
    X(cuKernelGetParamCount) \
    X(cuKernelGetParamInfo) \
    X(cuKernelSetAttribute) \
    X(cuKernelSetCacheConfig) \
    X(cuLaunch) \
    X(cuLaunchCooperativeKernel) \
    X(cuLaunchCooperativeKernelMultiDevice) \
    X(cuLaunchGrid) \
    X(cuLaunchGridAsync) \
    X(cuLaunchHostFunc) \
    X(cuLaunchHostFunc_v2) \
    X(cuLaunchKernel) \
    X(cuLaunchKernelEx) \
    X(cuLibraryEnumerateKernels) \
    X(cuLibraryGetGlobal) \
    X(cuLibraryGetKernel) \
    X(cuLibraryGetKernelCount) \
    X(cuLibraryGetManaged) \
    X(cuLibraryGetModule) \
    X(cuLibraryGetUnifiedFunction) \
    X(cuLibraryLoadData) \
    X(cuLibraryLoadFromFile) \
    X(cuLibraryUnload) \
    X(cuLinkAddData_v2) \
    X(cuLinkAddFile_v2) \
    X(cuLinkCreate_v2) \
    X(cuLogicalEndpointAddDevice) \
    X(cuLogicalEndpointBindAddr) \
    X(cuLogicalEndpointBindMem) \
    X(cuLogicalEndpointCreate) \
    X(cuLogicalEndpointDestroy) \
    X(cuLogicalEndpointExport) \
    X(cuLogicalEndpointGetLimits) \
    X(cuLogicalEndpointIdRelease) \
    X(cuLogicalEndpointIdReserve) \
    X(cuLogicalEndpointImport) \
    X(cuLogicalEndpointQuery) \
    X(cuLogicalEndpointUnbind) \
    X(cuLogsCurrent) \
    X(cuLogsDumpToFile) \
    X(cuLogsDumpToMemory) \
    X(cuLogsRegisterCallback) \
    X(cuLogsUnregisterCallback) \
    X(cuMemAddressFree) \
    X(cuMemAddressReserve) \
    X(cuMemAdvise) \
    X(cuMemAdvise_v2) \
    X(cuMemAllocAsync) \
    X(cuMemAllocFromPoolAsync) \
    X(cuMemAllocHost_v2) \
    X(cuMemAllocManaged) \
    X(cuMemAllocPitch_v2) \
    X(cuMemAlloc_v2) \
    X(cuMemBatchDecompressAsync) \
    X(cuMemCreate) \
    X(cuMemDiscardAndPrefetchBatchAsync) \
    X(cuMemDiscardBatchAsync) \
    X(cuMemExportToShareableHandle) \
    X(cuMemFreeAsync) \
    X(cuMemFreeHost) \
    X(cuMemFree_v2) \
    X(cuMemGetAccess) \
    X(cuMemGetAddressRange_v2) \
    X(cuMemGetAllocationGranularity) \
    X(cuMemGetAllocationPropertiesFromHandle) \
    X(cuMemGetDefaultMemPool) \
    X(cuMemGetHandleForAddressRange) \
    X(cuMemGetInfo_v2) \
    X(cuMemGetMemPool) \
    X(cuMemHostAlloc) \
    X(cuMemHostGetDevicePointer_v2) \
    X(cuMemHostGetFlags) \
    X(cuMemHostRegister_v2) \
    X(cuMemHostUnregister) \
    X(cuMemImportFromShareableHandle) \
    X(cuMemMap) \
    X(cuMemMapArrayAsync) \
    X(cuMemPoolCreate) \
    X(cuMemPoolDestroy) \
    X(cuMemPoolExportPointer) \
    X(cuMemPoolExportToShareableHandle) \
    X(cuMemPoolGetAccess) \
    X(cuMemPoolGetAttribute) \
    X(cuMemPoolImportFromShareableHandle) \
    X(cuMemPoolImportPointer) \
    X(cuMemPoolSetAccess) \
    X(cuMemPoolSetAttribute) \
    X(cuMemPoolTrimTo) \
    X(cuMemPrefetchAsync) \
    X(cuMemPrefetchAsync_v2) \
    X(cuMemPrefetchBatchAsync) \
    X(cuMemRangeGetAttribute) \
    X(cuMemRangeGetAttributes) \
    X(cuMemRelease) \
    X(cuMemRetainAllocationHandle) \
    X(cuMemSetAccess) \
    X(cuMemSetMemPool) \
    X(cuMemUnmap) \
    X(cuMemcpy) \
    X(cuMemcpy2DAsync_v2) \
    X(cuMemcpy2DUnaligned_v2) \
    X(cuMemcpy2D_v2) \
    X(cuMemcpy3DAsync_v2) \
    X(cuMemcpy3DBatchAsync_v2) \
    X(cuMemcpy3DPeer) \
    X(cuMemcpy3DPeerAsync) \
    X(cuMemcpy3DWithAttributesAsync) \
    X(cuMemcpy3D_v2) \
    X(cuMemcpyAsync) \
    X(cuMemcpyAtoA_v2) \
    X(cuMemcpyAtoD_v2) \
    X(cuMemcpyAtoHAsync_v2) \
    X(cuMemcpyAtoH_v2) \
    X(cuMemcpyBatchAsync_v2) \
    X(cuMemcpyDtoA_v2) \
    X(cuMemcpyDtoDAsync_v2) \
    X(cuMemcpyDtoD_v2) \
    X(cuMemcpyDtoHAsync_v2) \
    X(cuMemcpyDtoH_v2) \
    X(cuMemcpyHtoAAsync_v2) \
    X(cuMemcpyHtoA_v2) \
    X(cuMemcpyHtoDAsync_v2) \
    X(cuMemcpyHtoD_v2) \
    X(cuMemcpyPeer) \
    X(cuMemcpyPeerAsync) \
    X(cuMemcpyWithAttributesAsync) \
    X(cuMemsetD16Async) \
    X(cuMemsetD16_v2) \
    X(cuMemsetD2D16Async) \
    X(cuMemsetD2D16_v2) \
    X(cuMemsetD2D32Async) \
    X(cuMemsetD2D32_v2) \
    X(cuMemsetD2D8Async) \
    X(cuMemsetD2D8_v2) \
    X(cuMemsetD32Async) \
    X(cuMemsetD32_v2) \
    X(cuMemsetD8Async) \
    X(cuMemsetD8_v2) \
    X(cuMipmappedArrayCreate) \
    X(cuMipmappedArrayDestroy) \
    X(cuMipmappedArrayGetLevel) \
    X(cuMipmappedArrayGetMemoryRequirements) \
    X(cuMipmappedArrayGetSparseProperties) \
    X(cuModuleEnumerateFunctions) \
    X(cuModuleGetFunction) \
    X(cuModuleGetFunctionCount) \
    X(cuModuleGetGlobal_v2) \
    X(cuModuleGetLoadingMode) \
    X(cuModuleGetSurfRef) \
    X(cuModuleGetTexRef) \
    X(cuModuleLoad) \
    X(cuModuleLoadData) \
    X(cuModuleLoadDataEx) \
    X(cuModuleLoadFatBinary) \
    X(cuModuleUnload) \
    X(cuMulticastAddDevice) \
    X(cuMulticastBindAddr) \
    X(cuMulticastBindAddr_v2) \
    X(cuMulticastBindMem) \
    X(cuMulticastBindMem_v2) \
    X(cuMulticastCreate) \
    X(cuMulticastGetGranularity) \
    X(cuMulticastUnbind) \
    X(cuOccupancyAvailableDynamicSMemPerBlock) \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessor) \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags) \
    X(cuOccupancyMaxActiveClusters) \
    X(cuOccupancyMaxPotentialBlockSize) \
    X(cuOccupancyMaxPotentialBlockSizeWithFlags) \
    X(cuOccupancyMaxPotentialClusterSize) \
    X(cuParamSetSize) \
    X(cuParamSetTexRef) \
    X(cuParamSetf) \
    X(cuParamSeti) \
    X(cuParamSetv) \
    X(cuPointerGetAttribute) \
    X(cuPointerGetAttributes) \
    X(cuPointerSetAttribute) \
    X(cuSignalExternalSemaphoresAsync) \
    X(cuStreamAddCallback) \
    X(cuStreamAttachMemAsync) \
    X(cuStreamBatchMemOp_v2) \
    X(cuStreamBeginCapture) \
    X(cuStreamBeginCaptureToCig) \
    X(cuStreamBeginCaptureToGraph) \
    X(cuStreamBeginCapture_v2) \
    X(cuStreamBeginRecaptureToGraph) \
    X(cuStreamCopyAttributes) \
    X(cuStreamCreate) \
    X(cuStreamCreateWithPriority) \
    X(cuStreamDestroy) \
    X(cuStreamDestroy_v2) \
    X(cuStreamEndCapture) \
    X(cuStreamEndCaptureToCig) \
    X(cuStreamGetAttribute) \
    X(cuStreamGetCaptureInfo_v2) \
    X(cuStreamGetCaptureInfo_v3) \
    X(cuStreamGetCtx) \
    X(cuStreamGetCtx_v2) \
    X(cuStreamGetDevResource) \
    X(cuStreamGetDevice) \
    X(cuStreamGetFlags) \
    X(cuStreamGetGreenCtx) \
    X(cuStreamGetId) \
    X(cuStreamGetPriority) \
    X(cuStreamIsCapturing) \
    X(cuStreamQuery) \
    X(cuStreamSetAttribute) \
    X(cuStreamSynchronize) \
    X(cuStreamUpdateCaptureDependencies_v2) \
    X(cuStreamWaitEvent) \
    X(cuStreamWaitValue32_v2) \
    X(cuStreamWaitValue64_v2) \
    X(cuStreamWriteValue32_v2) \
    X(cuStreamWriteValue64_v2) \
    X(cuSurfObjectCreate) \
    X(cuSurfObjectDestroy) \
    X(cuSurfObjectGetResourceDesc) \
    X(cuSurfRefGetArray) \
    X(cuSurfRefSetArray) \
    X(cuTensorMapEncodeIm2col) \
    X(cuTensorMapEncodeIm2colWide) \
    X(cuTensorMapEncodeTiled) \
    X(cuTensorMapReplaceAddress) \
    X(cuTensorMapSetAllocationClass) \
    X(cuTexObjectCreate) \
    X(cuTexObjectDestroy) \
    X(cuTexObjectGetResourceDesc) \
    X(cuTexObjectGetResourceViewDesc) \
    X(cuTexObjectGetTextureDesc) \
    X(cuTexRefCreate) \
    X(cuTexRefDestroy) \
    X(cuTexRefGetAddressMode) \
    X(cuTexRefGetAddress_v2) \
    X(cuTexRefGetArray) \
    X(cuTexRefGetBorderColor) \
    X(cuTexRefGetFilterMode) \
    X(cuTexRefGetFlags) \
    X(cuTexRefGetFormat) \
    X(cuTexRefGetMaxAnisotropy) \
    X(cuTexRefGetMipmapFilterMode) \
    X(cuTexRefGetMipmapLevelBias) \
    X(cuTexRefGetMipmapLevelClamp) \
    X(cuTexRefGetMipmappedArray) \
    X(cuTexRefSetAddress2D_v2) \
    X(cuTexRefSetAddress2D_v3) \
    X(cuTexRefSetAddressMode) \
    X(cuTexRefSetAddress_v2) \
    X(cuTexRefSetArray) \
    X(cuTexRefSetBorderColor) \
    X(cuTexRefSetFilterMode) \
    X(cuTexRefSetFlags) \
    X(cuTexRefSetFormat) \
    X(cuTexRefSetMaxAnisotropy) \
    X(cuTexRefSetMipmapFilterMode) \
    X(cuTexRefSetMipmapLevelBias) \
    X(cuTexRefSetMipmapLevelClamp) \
    X(cuTexRefSetMipmappedArray) \
    X(cuThreadExchangeStreamCaptureMode) \
    X(cuUserObjectCreate) \
    X(cuUserObjectRelease) \
    X(cuUserObjectRetain) \
    X(cuWaitExternalSemaphoresAsync)

/* Functions that take a structure by value, or need no simulator. */
#define OWN_FUNCTIONS(X) \
    X(cuGetErrorName) \
    X(cuGetErrorString) \
    X(cuGetProcAddress) \
    X(cuGetProcAddress_v2) \
    X(cuIpcOpenEventHandle) \
    X(cuIpcOpenMemHandle) \
    X(cuIpcOpenMemHandle_v2)

#define ERRORS(X) \
    X(0, CUDA_SUCCESS) \
    X(1, CUDA_ERROR_INVALID_VALUE) \
    X(2, CUDA_ERROR_OUT_OF_MEMORY) \
    X(3, CUDA_ERROR_NOT_INITIALIZED) \
    X(4, CUDA_ERROR_DEINITIALIZED) \
    X(5, CUDA_ERROR_PROFILER_DISABLED) \
    X(6, CUDA_ERROR_PROFILER_NOT_INITIALIZED) \
    X(7, CUDA_ERROR_PROFILER_ALREADY_STARTED) \
    X(8, CUDA_ERROR_PROFILER_ALREADY_STOPPED) \
    X(34, CUDA_ERROR_STUB_LIBRARY) \
    X(36, CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER) \
    X(46, CUDA_ERROR_DEVICE_UNAVAILABLE) \
    X(47, CUDA_ERROR_MULTICAST_RESOURCE_FULL) \
    X(100, CUDA_ERROR_NO_DEVICE) \
    X(101, CUDA_ERROR_INVALID_DEVICE) \
    X(102, CUDA_ERROR_DEVICE_NOT_LICENSED) \
    X(200, CUDA_ERROR_INVALID_IMAGE) \
    X(201, CUDA_ERROR_INVALID_CONTEXT) \
    X(202, CUDA_ERROR_CONTEXT_ALREADY_CURRENT) \
    X(205, CUDA_ERROR_MAP_FAILED) \
    X(206, CUDA_ERROR_UNMAP_FAILED) \
    X(207, CUDA_ERROR_ARRAY_IS_MAPPED) \
    X(208, CUDA_ERROR_ALREADY_MAPPED) \
    X(209, CUDA_ERROR_NO_BINARY_FOR_GPU) \
    X(210, CUDA_ERROR_ALREADY_ACQUIRED) \
    X(211, CUDA_ERROR_NOT_MAPPED) \
    X(212, CUDA_ERROR_NOT_MAPPED_AS_ARRAY) \
    X(213, CUDA_ERROR_NOT_MAPPED_AS_POINTER) \
    X(214, CUDA_ERROR_ECC_UNCORRECTABLE) \
    X(215, CUDA_ERROR_UNSUPPORTED_LIMIT) \
    X(216, CUDA_ERROR_CONTEXT_ALREADY_IN_USE) \
    X(217, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED) \
    X(218, CUDA_ERROR_INVALID_PTX) \
    X(219, CUDA_ERROR_INVALID_GRAPHICS_CONTEXT) \
    X(220, CUDA_ERROR_NVLINK_UNCORRECTABLE) \
    X(221, CUDA_ERROR_JIT_COMPILER_NOT_FOUND) \
    X(222, CUDA_ERROR_UNSUPPORTED_PTX_VERSION) \
    X(223, CUDA_ERROR_JIT_COMPILATION_DISABLED) \
    X(224, CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY) \
    X(225, CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC) \
    X(226, CUDA_ERROR_CONTAINED) \
    X(227, CUDA_ERROR_INSUFFICIENT_LOADER_VERSION) \
    X(300, CUDA_ERROR_INVALID_SOURCE) \
    X(301, CUDA_ERROR_FILE_NOT_FOUND) \
    X(302, CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND) \
    X(303, CUDA_ERROR_SHARED_OBJECT_INIT_FAILED) \
    X(304, CUDA_ERROR_OPERATING_SYSTEM) \
    X(400, CUDA_ERROR_INVALID_HANDLE) \
    X(401, CUDA_ERROR_ILLEGAL_STATE) \
    X(402, CUDA_ERROR_LOSSY_QUERY) \
    X(500, CUDA_ERROR_NOT_FOUND) \
    X(600, CUDA_ERROR_NOT_READY) \
    X(700, CUDA_ERROR_ILLEGAL_ADDRESS) \
    X(701, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES) \
    X(702, CUDA_ERROR_LAUNCH_TIMEOUT) \
    X(703, CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING) \
    X(704, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) \
    X(705, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED) \
    X(708, CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE) \
    X(709, CUDA_ERROR_CONTEXT_IS_DESTROYED) \
    X(710, CUDA_ERROR_ASSERT) \
    X(711, CUDA_ERROR_TOO_MANY_PEERS) \
    X(712, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) \
    X(713, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED) \
    X(714, CUDA_ERROR_HARDWARE_STACK_ERROR) \
    X(715, CUDA_ERROR_ILLEGAL_INSTRUCTION) \
    X(716, CUDA_ERROR_MISALIGNED_ADDRESS) \
    X(717, CUDA_ERROR_INVALID_ADDRESS_SPACE) \
    X(718, CUDA_ERROR_INVALID_PC) \
    X(719, CUDA_ERROR_LAUNCH_FAILED) \
    X(720, CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE) \
    X(721, CUDA_ERROR_TENSOR_MEMORY_LEAK) \
    X(800, CUDA_ERROR_NOT_PERMITTED) \
    X(801, CUDA_ERROR_NOT_SUPPORTED) \
    X(802, CUDA_ERROR_SYSTEM_NOT_READY) \
    X(803, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH) \
    X(804, CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE) \
    X(805, CUDA_ERROR_MPS_CONNECTION_FAILED) \
    X(806, CUDA_ERROR_MPS_RPC_FAILURE) \
    X(807, CUDA_ERROR_MPS_SERVER_NOT_READY) \
    X(808, CUDA_ERROR_MPS_MAX_CLIENTS_REACHED) \
    X(809, CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED) \
    X(810, CUDA_ERROR_MPS_CLIENT_TERMINATED) \
    X(811, CUDA_ERROR_CDP_NOT_SUPPORTED) \
    X(812, CUDA_ERROR_CDP_VERSION_MISMATCH) \
    X(900, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) \
    X(901, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) \
    X(902, CUDA_ERROR_STREAM_CAPTURE_MERGE) \
    X(903, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED) \
    X(904, CUDA_ERROR_STREAM_CAPTURE_UNJOINED) \
    X(905, CUDA_ERROR_STREAM_CAPTURE_ISOLATION) \
    X(906, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) \
    X(907, CUDA_ERROR_CAPTURED_EVENT) \
    X(908, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD) \
    X(909, CUDA_ERROR_TIMEOUT) \
    X(910, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE) \
    X(911, CUDA_ERROR_EXTERNAL_DEVICE) \
    X(912, CUDA_ERROR_INVALID_CLUSTER_SIZE) \
    X(913, CUDA_ERROR_FUNCTION_NOT_LOADED) \
    X(914, CUDA_ERROR_INVALID_RESOURCE_TYPE) \
    X(915, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION) \
    X(916, CUDA_ERROR_KEY_ROTATION) \
    X(917, CUDA_ERROR_STREAM_DETACHED) \
    X(918, CUDA_ERROR_GRAPH_RECAPTURE_FAILURE) \
    X(919, CUDA_ERROR_FABRIC_NOT_READY) \
    X(999, CUDA_ERROR_UNKNOWN)
